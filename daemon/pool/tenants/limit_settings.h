// Limits of tenants. The configuration sets some, and administrators set others at run time. A limit of run time goes before a
// limit of the configuration, also after a restart. marud writes a change into a file before the change applies.
//
//   (1) A thread writes at most one change at a time.
//
// Thread safety: one thread, and the writing thread, which has its own copy. If marud dies here: the change is written down
// for the next marud, or no administrator was told that it is.
#pragma once

#include "daemon/base/aside.h"
#include "daemon/pool/tenants/tenants.h"
#include "libmaru/base/result.h"

#include <functional>
#include <optional>
#include <utility>

namespace maru::daemon {

// Writes down the limits of run time, for the next marud.
using SaveTenants = std::function<Result<void>(const TenantSettings& at_run_time)>;

class LimitSettings {
 public:
  // A change that came to its end: `at_run_time` is written down, or why not.
  struct Written {
    TenantSettings at_run_time;
    Result<void> result;
  };

  void configure(const TenantSettings& configured) { configured_ = configured; }
  void set_save(SaveTenants save) { save_ = std::move(save); }
  void set_at_run_time(const TenantSettings& settings) { at_run_time_ = settings; }
  const TenantSettings& configured() const { return configured_; }
  const TenantSettings& at_run_time() const { return at_run_time_; }
  TenantSettings both() const { return merged(configured_, at_run_time_); }

  // Writes this down now; or with `aside` by a thread, and returns nothing: take_written() has the result, once.
  std::optional<Written> write(const TenantSettings& at_run_time, bool aside);
  std::optional<Written> take_written();
  bool is_writing() const { return saved_.is_begun(); }
  bool has_writer() const { return saved_.is_lasting(); }

 private:
  TenantSettings configured_, at_run_time_;
  SaveTenants save_;
  TenantSettings being_written_;
  Aside<Result<void>> saved_;
};

}  // namespace maru::daemon
