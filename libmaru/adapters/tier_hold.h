// A form that a tier below the pool has: maru-tierd brings its blocks back by their keys, and holds them until this goes.
#pragma once

#include "libmaru/adapters/part_keys.h"

#include <maru/prefetch.h>
#include <string>
#include <utility>

namespace maru::adapters {

class TierHold {
 public:
  TierHold() = default;
  ~TierHold() { let_go(); }
  TierHold(const TierHold&) = delete;
  TierHold& operator=(const TierHold&) = delete;

  // Waits until all parts are in the pool. Returns 0, and the bytes that were read. Errors: -ENOENT no tier has all of them in
  // a quarter of the time; the errors of maru_prefetch().
  int load(const std::string& socket_path, const PartKeys& keys, uint32_t timeout_ms, uint64_t* ret_bytes);
  void let_go() { maru_prefetch_release(std::exchange(ticket_, nullptr)); }

 private:
  maru_prefetch_ticket* ticket_ = nullptr;
};

}  // namespace maru::adapters
