// Eviction policies: the order in which marud takes blocks away when it needs their memory.
//
// A policy says which evictable block goes first. It does not say which blocks are evictable: a block with children or with a
// pin stays under every policy, and marud alone retires and frees. So a wrong policy causes a poor hit ratio and no other harm.
//
// marud keeps the blocks that it knows in queues, ordered from cold to warm. For each block the policy names a queue and an
// order within it (`place`). It knows facts about the block, and one word of its own that marud stores beside the block and
// that survives a restart of marud. Three events let the policy change that word: the block was stored, it was used, a child of
// it was evicted. A question, `spare`, is asked when a block is about to go: the policy may give it a second chance.
//
//     least recently used        place = {0, last_use}
//     first in, first out        place = {0, stored}
//     least frequently used      stored: word = 1; used: ++word; place = {word, last_use}
//     clock                      used: set a bit; spare: clear the bit and come back as if stored now
//
// When marud needs memory, it merges the cold ends of the queues of all regions in question. By default the lowest queue goes
// first, and within a queue the lowest order (Ranking::kByPlace). A policy whose queues compete in another way gives each cold
// end a rank instead (Ranking::kByRank); S3-FIFO chooses so between its two queues. Under every policy the blocks of tenants
// over their limit go before all others. Among blocks at the same place, those that have a copy elsewhere, as in a
// tier, go first, as far as marud looks.
//
// Cost: a block is moved in constant time when its new place is the warm end of its queue, as after a use in every policy
// above. Otherwise marud searches from the cold end. All calls come from marud's one deciding thread; none may block, throw or
// call back.
//
// A policy of your own is a shared object in marud's policy folder (`[daemon] policy_dir`). Folder and file must belong to
// root, and only root may write them. NAME.so exports the two symbols at the end of this file, and the pool is configured with
// policy = "NAME". marud's tests build and load the example in docs/examples/policy.
#ifndef MARU_POLICY_H
#define MARU_POLICY_H

#include <cstddef>
#include <cstdint>

namespace maru {

// Changes when this header changes in a way that a compiled policy would notice.
inline constexpr uint32_t kPolicyAbi = 1;

// The facts about a block that a policy may read. Ticks are milliseconds since the pool was formatted.
struct PolicyBlock {
  uint64_t word = 0;      // the policy's own; 0 when the block is new to it. Events may change it, nothing else
  uint64_t last_use = 0;  // tick of the last use that marud knows: also of a child that left
  // With kNeedsLine, else 0:
  uint64_t expires = 0;  // tick; 0: never
  uint64_t digest = 0;   // 64 bits of the key's digest: the same when the same key is stored again
  uint32_t pages = 0;    // of its run
  uint32_t depth = 0;    // blocks above it in its chain
  // With kNeedsDetail, else 0:
  uint64_t stored = 0;        // tick
  uint64_t tenant = 0;        // keyed hash of the tenant's name; 0: none
  uint32_t priority = 0;      // as given to maru_store; 0 by default
  uint32_t content_type = 0;  // enum maru_content_type
};

// The parts of PolicyBlock that a policy reads. Each part costs marud a cache miss a block.
enum PolicyNeeds : uint32_t {
  kNeedsNothing = 0,
  kNeedsLine = 1u << 0,
  kNeedsDetail = 1u << 1,
};

// Of the pool, when it is asked.
struct PolicyPool {
  uint64_t now = 0;           // tick
  uint64_t pages = 0;         // of the pool
  uint64_t region_pages = 0;  // no block has more
  uint64_t page_bytes = 0;
};

// The tenant of a block, when it is asked; all 0 for blocks that count for no tenant.
struct PolicyTenant {
  uint64_t used_bytes = 0;
  uint64_t limit_bytes = 0;  // soft; 0: none
};

// Where a block stands: the queue, and the order within it, both from cold to warm.
struct PolicyPlace {
  uint32_t queue = 0;
  uint64_t order = 0;
};

// How many blocks stand in a queue now, all regions together.
class PolicyQueues {
 public:
  virtual uint64_t blocks(uint32_t queue) const = 0;

 protected:
  ~PolicyQueues() = default;
};

enum class Ranking : uint8_t {
  kByPlace,  // the lowest queue first, in it the lowest order
  kByRank,   // the cold end with the lowest rank() first
};

class Policy {
 public:
  virtual ~Policy() = default;

  // A name as in the configuration: constant, at most 63 bytes.
  virtual const char* name() const = 0;
  virtual uint32_t needs() const { return kNeedsNothing; }
  virtual Ranking ranking() const { return Ranking::kByPlace; }
  // False: nothing is evicted, neither for a request nor in the background. (Blocks can still expire and be deleted.)
  virtual bool evicts() const { return true; }

  // A block that was not known before. Its word is 0.
  virtual void stored(PolicyBlock&, const PolicyPool&) {}
  // A use. last_use is the time of this use. Uses that follow each other within a few milliseconds may come as one.
  virtual void used(PolicyBlock&, const PolicyPool&) {}
  // A child of the block was evicted; last_use of the parent is unchanged. Each use of the child was also a use of the parent,
  // which the parent's own uses do not show: here the policy can account for it.
  virtual void child_left(PolicyBlock& /*parent*/, const PolicyBlock& /*child*/, const PolicyPool&) {}
  // Depends on the block alone, not on the time or on earlier calls: marud asks again after a restart.
  virtual PolicyPlace place(const PolicyBlock& block) const = 0;
  // The block is the next to go. True: it stays, and its place is warmer than before. Once one search has spared as many blocks
  // as are queued in the regions in question, marud takes the next block without asking.
  virtual bool spare(PolicyBlock&, const PolicyPool&) { return false; }
  // The block was evicted (not: deleted, or expired).
  virtual void evicted(const PolicyBlock&) {}
  // With Ranking::kByRank: the rank of the cold end of a queue. The lowest rank goes first, and among equals the lower order.
  // During one request (`now` stands still) a rank may rise when blocks leave and must not fall: that is noticed late.
  virtual uint64_t rank(const PolicyBlock&, const PolicyTenant&, const PolicyQueues&, const PolicyPool&) const {
    return 0;
  }
};

// `policy_options` of the configuration, as text: numbers as "0.5", booleans as "true" and "false".
struct PolicyOption {
  const char* name;
  const char* value;
};

}  // namespace maru

// The symbols that a shared object exports.
extern "C" {
// The value of kPolicyAbi that it was compiled with.
extern const uint32_t maru_policy_abi;
// Makes a policy for one pool, or returns null and writes why, as a sentence, into `problem` (problem_bytes long). The options
// live during the call only. marud deletes the policy.
maru::Policy* maru_policy_create(const maru::PolicyOption* options, size_t options_count, char* problem,
                                 size_t problem_bytes);
}

#endif
