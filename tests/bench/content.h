// Blocks in a pool, and the other processes of a row that use them.
#pragma once

#include "tests/bench/keys.h"
#include "tests/bench/marud_process.h"
#include "tests/bench/suite.h"

#include <memory>
#include <string>
#include <vector>

namespace maru::bench {

// The number of keys in as many chains as hold `wanted`.
uint64_t whole_chains(uint64_t wanted);

// Which of the chains are stored. A store into a full pool meets a full bucket of the registry once in 50,000 times. marud then
// evicts the coldest block of the bucket that may go, which can be the end of another chain. Where none may go the chain ends
// early (-EXFULL). No row asks for a chain that lacks blocks.
class Chains {
 public:
  explicit Chains(uint64_t keys) : complete_(keys / kChainBlocks, true) {}
  void end_early(uint64_t chain) { complete_[chain] = false; }
  bool is_complete(uint64_t chain) const { return complete_[chain]; }
  uint64_t count() const { return complete_.size(); }
  // Whether its blocks lie in pages that are strewn over those of many chains, instead of side by side: every other chain.
  static bool is_strewn(uint64_t chain) { return chain % 2 != 0; }
  uint64_t incomplete() const;

 private:
  std::vector<bool> complete_;
};

// Publishes key_of(0..keys) as chains of kChainBlocks, without touching payload.
// Every other one in strewn pages.
Chains store_chains(maru_client* client, uint64_t keys);
// Pins the end of each chain, so that no later store evicts it, and marks the chains that lack blocks. The pins last as long as
// the clients that are returned; each holds as many as the default shape of a pool lets it.
std::vector<std::unique_ptr<Client>> keep_chains(const std::string& socket_path, Chains& chains);
// Publishes key_of(first..first + keys) as roots, except where the registry is full.
void store_roots(maru_client* client, uint64_t first, uint64_t keys);
// maru_store. False where the registry is full: the buffer is given back.
bool store_block(maru_client* client, const Key& key, const maru_buffer& buffer,
                 const maru_store_options* options = nullptr);

Facts facts_of(const maru_geometry& geometry, uint64_t keys);

// The other processes are this executable again, in a role. They say "ready" when they are, and end when their input
// ends.
//   storing SOCKET                    stores and deletes small blocks until it ends
//   holding SOCKET FIRST COUNT        holds COUNT pins, on key_of(FIRST) and what follows
//   asking SOCKET KEYS                for each line "go MS" asks for MS milliseconds and prints the keys it asked
//   spinning                          the same with a busy loop
//   mapping BYTES                     maps and touches memory, then waits
std::unique_ptr<Child> start_role(const std::vector<std::string>& arguments);
// Runs a role; the process's exit status.
int play_role(const std::vector<std::string>& arguments);

}  // namespace maru::bench
