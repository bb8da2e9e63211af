// Fills the catalogue of a Redis with the entries below the prefix, whichever host has stored them. One round, over the tier's
// own connection, a batch of names after the other:
//
//   SCAN -> GETRANGE of each head, its numbers -> EXISTS of its chunks -> counted; or DEL of a head without its chunks
//
// The server may evict chunks and keep their head. Such an entry is absent, so it does not count. A list reads heads, which the
// server takes for uses of them: it would keep the head of an evicted payload for ever. So the census deletes it.
//
// Answers come from outside. A batch has a bound, and so has a round: `names_max` names.
//
// Threads: one.
#pragma once

#include "daemon/tierd/tiers/catalogue.h"
#include "daemon/tierd/tiers/resp_output.h"
#include "daemon/tierd/tiers/resp_value.h"

#include <deque>
#include <functional>
#include <string>
#include <vector>

struct redisReply;

namespace maru::tierd {

Catalogue::About about_resp_entry(std::string_view key, const RespHead& head, uint64_t attributes_bytes);

class RespCensus {
 public:
  // `is_changing`: a store or a deletion of this key has not been answered.
  RespCensus(std::string prefix, uint64_t names_max, Catalogue& catalogue,
             std::function<bool(const std::string& key)> is_changing);

  void begin();
  bool is_under_way() const { return step_ != Step::kNone; }
  // The commands of the next step. Returns the number of answers that they get.
  size_t ask(RespOutput& output);
  // The answers, in their order. After the last one either ask() goes on, or the round is over.
  void take(const redisReply& reply);
  // The connection is gone.
  void abandon();
  // Of the last round, for people; empty: it was whole.
  const std::string& trouble() const { return trouble_; }

 private:
  enum class Step : uint8_t { kNone, kScan, kHeads, kChunks, kDelete };
  struct Name {
    std::string key;
    RespHead head;
    uint32_t attributes_bytes = 0;
    size_t chunks = 0;  // that EXISTS asks for
  };

  bool take_names(const redisReply& reply);
  void next_step();
  void end(std::string trouble);

  const std::string prefix_;
  const uint64_t names_max_;
  Catalogue& catalogue_;
  const std::function<bool(const std::string&)> is_changing_;
  Step step_ = Step::kNone;
  std::string cursor_, trouble_;
  std::vector<Name> names_;  // of this batch, in this step
  std::vector<Name> kept_;   // of them, for the next step
  std::vector<Name> gone_;   // heads without their chunks
  size_t answered_ = 0;
  uint64_t names_left_ = 0;
};

}  // namespace maru::tierd
