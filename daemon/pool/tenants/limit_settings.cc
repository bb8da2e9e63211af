#include "daemon/pool/tenants/limit_settings.h"

#include <cerrno>

namespace maru::daemon {

std::optional<LimitSettings::Written> LimitSettings::write(const TenantSettings& at_run_time, bool aside) {
  if (!aside || !save_) return Written{at_run_time, save_ ? save_(at_run_time) : Result<void>()};
  being_written_ = at_run_time;
  saved_.begin([save = save_, at_run_time] { return save(at_run_time); },
               failure(ENOMEM, "write down the limits of tenants"));
  return std::nullopt;
}

std::optional<LimitSettings::Written> LimitSettings::take_written() {
  auto saved = saved_.take();
  if (!saved) return std::nullopt;
  return Written{being_written_, *std::move(saved)};
}

}  // namespace maru::daemon
