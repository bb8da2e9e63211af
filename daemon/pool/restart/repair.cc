// After a loss of power: the bookkeeping that the audit finds damaged is repaired, and the rest of the pool stays.
// docs/format.md, "A pool that lost power", 4.
#include "daemon/pool/restart/restart.h"

#include "daemon/base/log.h"
#include "daemon/pool/inspect/names.h"
#include "libmaru/shm/recovery/repair.h"

#include <algorithm>
#include <array>

namespace maru::daemon {
namespace {

// Each round takes away the leftovers of the round before: the entry of a block that went, its tails, its children. Damage that
// outlasts so many rounds comes back.
constexpr int kRepairRounds = 16;
constexpr size_t kNamesShown = 5;
constexpr size_t kKeyShownBytes = 64;

class FoundInAudit final : public shm::FindingSink {
 public:
  std::vector<shm::Finding> findings;
  void found(const shm::Finding& finding) override { findings.push_back(finding); }
};

}  // namespace

// Repairs and audits again, until nothing is found or nothing helps. Returns the findings of the last audit.
Audits::AtRest Restart::repair_bookkeeping(Pool::Verified& verified) {
  struct Repairs final : shm::RepairSink {
    Restart& restart;
    std::array<uint64_t, shm::kRepairCount> counts{};
    std::string names;
    size_t names_shown = 0;

    explicit Repairs(Restart& of) : restart(of) {}
    void block_goes(PageRef ref) override {
      restart.queues_.remove(ref.page());
      if (names_shown++ >= kNamesShown) return;
      names += (names.empty() ? "; the first blocks: page " : ", page ") + std::to_string(ref.page());
      if (!shm::read_key(restart.core_.region, ref, &restart.core_.key)) return;
      names += " (key " + quoted_key(restart.core_.key, kKeyShownBytes) + ")";
    }
    void count_is_wrong(PageRef parent) override { restart.findings_.parents.add(parent.page()); }
    std::string text() const {
      std::string text;
      for (size_t i = 1; i < counts.size(); ++i)
        if (counts[i] != 0)
          text += (text.empty() ? "" : ", ") + std::to_string(counts[i]) + " " + shm::repair_name(shm::Repair(i));
      return (text.empty() ? "nothing could be done" : text) + names;
    }
  };

  Audits::AtRest report = audits_.look_at_rest();
  if (report.found == 0) return report;
  const std::string first = report.text;
  std::vector<std::byte> scratch(shm::audit_scratch_bytes(core_.region));
  Repairs repairs(*this);
  uint64_t without_repair = 0;
  for (int round = 0; round < kRepairRounds && report.found != 0 && without_repair == 0; ++round) {
    shm::AuditRequest request = audits_.live_request();
    request.mode = shm::AuditMode::kExact;
    request.findings_max = kNever;
    FoundInAudit found;
    shm::audit(core_.region, request, scratch, found);
    for (const shm::Finding& finding : found.findings) {
      ++repairs.counts[size_t(shm::repair(core_.region, lanes_.first, finding, repairs))];
      without_repair += shm::repair_of(finding.invariant) == shm::Repair::kNone;
    }
    // Blocks whose ancestors went, all of a chain at once, and blocks that no entry names any more.
    std::vector<uint8_t> none_more(core_.pages(), 0);
    drop_bad(none_more, verified);
    recounts_.resume();
    recounts_.step(false);
    report = audits_.look_at_rest();
  }
  log_warning("pool \"{}\": its bookkeeping was damaged by the loss of power ({}), and is {}: {}", core_.config.name,
              first, report.found == 0 ? "repaired" : "damaged still", repairs.text());
  return report;
}

}  // namespace maru::daemon
