// An audit in slices, for a marud that clients wait for. It has the same findings as audit(). An invariant that holds always
// holds in every slice. The queues are looked at region by region, each in one slice, so between two steps of marud. When two
// moments disagree about a count of children, two passes of their own compare them ("doubts").
#pragma once

#include "libmaru/shm/audit/checks.h"

namespace maru::shm {

class AuditRun {
 public:
  // All of these outlive it, but the request; see audit().
  AuditRun(const ControlRegion& region, const AuditRequest& request, std::span<std::byte> scratch, FindingSink& sink);

  // Goes on for about so many steps, each a line or so that is read. True when everything was looked at.
  bool step(uint64_t steps);
  const AuditReport& report() const { return audit_.report; }

 private:
  enum class Phase : uint8_t { kClear, kChildren, kRegistered, kPlaces, kBefore, kAfter, kDone };
  struct Slice {
    uint64_t first, last;
  };

  uint64_t cost(AuditPlace place) const;
  Slice take(uint64_t count, uint64_t each, uint64_t& steps);
  bool is_through(uint64_t count);

  audit_checks::Audit audit_;
  Phase phase_ = Phase::kClear;
  uint32_t place_ = 0;  // kPlaces
  uint64_t next_ = 0;   // item of the phase, or of the place
};

}  // namespace maru::shm
