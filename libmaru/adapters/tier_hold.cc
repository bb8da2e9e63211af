#include "libmaru/adapters/tier_hold.h"

#include <algorithm>
#include <cerrno>

namespace maru::adapters {

namespace {

// Of the time that a load may take; the rest is for reading the file where no tier answers.
constexpr uint32_t kShareOfTime = 4;
constexpr int kGraceMs = 250;  // for maru-tierd to say that the deadline is over

}  // namespace

int TierHold::load(const std::string& socket_path, const PartKeys& keys, uint32_t timeout_ms, uint64_t* ret_bytes) {
  let_go();
  if (keys.size() == 0 || keys.size() > MARU_PREFETCH_KEYS_MAX) return -ENOENT;
  maru_prefetch_options options = {};
  options.size = sizeof(options);
  options.socket_path = socket_path.c_str();
  options.deadline_ms = std::clamp(timeout_ms / kShareOfTime, 1u, 60'000u);
  if (const int status = maru_prefetch(keys.data(), keys.size(), &options, &ticket_); status < 0) return status;
  maru_prefetch_status_info info = {};
  info.size = sizeof(info);
  int status = maru_prefetch_wait(ticket_, int(options.deadline_ms) + kGraceMs, &info);
  if (status == 0 && info.usable != keys.size()) status = -ENOENT;
  if (status < 0) let_go();
  *ret_bytes = info.loaded_bytes;
  return status;
}

}  // namespace maru::adapters
