// Decides the fate of the devices that a pool may lie on: a judgement over facts, like a planner's. It opens, reads and logs
// nothing; hosted_pool_device.cc gathers the facts, and acts. Some facts cost a look at a whole device. A judgement that lacks
// a fact names it, and is asked again with it.
//
//   the device's content                     the pool
//   zeros, all over                          is formatted, unless format = "never"
//   this pool, of this boot or in order      is adopted, as a pool in a file
//   this pool, cut off by a loss of power    is adopted after every block was verified, or formatted (after_power_loss)
//   another pool, or anything else           is refused; only `marud --format` takes such a device
//   the same, on volatile memory that held   is cleared and formatted: memory has such bytes when power comes back, and the
//     this pool in another boot              state file knows that it lost power
//   a formatting that was cut off            is formatted, if it was begun by this machine and no pages but its own are there
//   a clearing that was cut off              is cleared and formatted, unless several hosts reach it
//
// A pool that several hosts share is never verified, cleared or formatted because of facts of this host: other hosts may be at
// work in it. Its blocks are compared with their checksums at every hit.
#pragma once

#include "daemon/config/config.h"
#include "daemon/hosting/power_loss.h"
#include "daemon/hosting/state_file.h"
#include "daemon/memory/dax_device.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace maru::daemon {

// The knowledge of this machine about the pool before it looks at a device.
struct KnownPool {
  PoolSpec spec;
  std::optional<PoolRecord> record;  // in the state directory
  std::string record_path;
  std::vector<OtherPool> others;  // on DAX devices, as the state files say
  std::string boot_id;            // of this boot
  uint32_t claim_number = 0;      // under which this machine claims memory that it formats
};

// One device, as it was when it was opened.
struct DaxFacts {
  std::string name;  // for people
  DaxDescription description;
  DeviceLabel label;
  uint64_t bytes = 0;
};

// The findings of a look at a whole device, for a judgement that lacks them.
struct DaxEvidence {
  struct Content {
    bool is_blank = false;  // zeros all over
    std::string found;      // otherwise, for people
  };
  std::optional<Content> content;
  std::optional<Belief> belief;  // in the pool that lies there
  std::optional<std::string>
      other_place;  // the path where the known pool lies by now; empty: on no device that can be read
};

enum class Fate : uint8_t { kFormat, kClearAndFormat, kAdopt, kVerify };

struct DaxJudgement {
  enum class Lack : uint8_t { kNothing, kContent, kBelief, kOtherPlace };
  Lack lacks = Lack::kNothing;  // otherwise there is no fate yet
  Fate fate = Fate::kAdopt;
  std::string warning = {};  // for the log; empty: nothing to say
};

class DaxJudge {
 public:
  explicit DaxJudge(KnownPool known) : known_(std::move(known)) {}
  const KnownPool& known() const { return known_; }

  // The fate of the device with everything, or with the control region of a pool whose pages lie on another device. An error:
  // the device is refused, with the reason.
  Result<DaxJudgement> judge(const DaxFacts& device, const DaxFacts* pages, const DaxEvidence& evidence) const;
  // The fate of the pages follows from the fate of their control region: kAdopt, kFormat for pages that hold nothing, or
  // kClearAndFormat.
  Result<DaxJudgement> judge_pages(const DaxFacts& pages, const DaxFacts& main, Fate fate,
                                   const DaxEvidence& evidence) const;

  // Which blank devices may be taken.
  BlankDevices blank_devices() const;
  // The state file knows this device by this name, and the device's memory lost its content since.
  bool lost_power(const DaxDescription& device, const std::string& name) const;
  // These pages went with the power, their label too, and the control region on another device did not.
  bool lost_power_under(const DaxFacts& pages) const;
  // Of a device that only its name speaks for: names change from boot to boot.
  Result<void> expect_garbage(const DaxFacts& device) const;
  // The uuid in a label of a formatting or a clearing that was cut off, and that this machine may go on with.
  std::optional<Uuid> begun_uuid(const DeviceLabel& label) const;
  std::string how_to_forget() const;

 private:
  Result<DaxJudgement> judge_known(const DaxFacts& device, const DaxFacts* pages, const DaxEvidence& evidence) const;
  Result<DaxJudgement> judge_blank(const DaxFacts& device, const DaxEvidence& evidence) const;
  Result<DaxJudgement> begin_anew(const DaxFacts& device, const std::string& wish, Fate fate) const;
  Result<void> expect_no_other_pool(const DaxFacts& device, const std::string& wish) const;
  Result<void> expect_whole(const DaxFacts& device, const DaxFacts* pages) const;
  tl::unexpected<Error> resized(const DaxFacts& device, uint64_t was_bytes) const;
  bool is_own_claim(const DeviceLabel& label) const;
  bool is_given_up(const DeviceLabel& label) const;
  bool is_half_cleared(const DaxFacts& device, const std::string& name) const;
  bool may_clear(const DaxFacts& pages, const DaxFacts& main, Fate fate) const;
  bool is_shared() const { return known_.spec.pool.sharing.is_shared; }
  const std::string& pool() const { return known_.spec.pool.name; }
  std::string how_to_force() const;

  const KnownPool known_;
};

}  // namespace maru::daemon
