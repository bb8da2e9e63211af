#include "tests/bench/content.h"

#include "tests/bench/clock.h"
#include "tests/bench/floors.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <iostream>
#include <poll.h>
#include <stdexcept>
#include <unistd.h>

namespace maru::bench {

namespace {

constexpr uint64_t kSmallBytes = 64;

bool input_ended() {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0 && (input.revents & (POLLHUP | POLLERR));
}

void say(const std::string& line) { std::cout << line << std::endl; }

int play_storing(const std::string& socket_path) {
  const Client client(socket_path, 256);
  say("ready");
  for (uint64_t round = 0; !input_ended(); ++round) {
    constexpr uint64_t kAtOnce = 1024;
    const uint64_t first = kSpaceStoring + round * kAtOnce;
    store_roots(client, first, kAtOnce);
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      const Key key = key_of(first + i);
      const maru_key name = as_maru_key(key);
      maru_delete(client, &name);
    }
  }
  return 0;
}

int play_holding(const std::string& socket_path, uint64_t first, uint64_t count) {
  const Client client(socket_path);
  uint64_t held = 0, absent = 0;
  for (uint64_t i = first; held < count; ++i) {
    const Key key = key_of(i);
    const maru_key name = as_maru_key(key);
    maru_view view{};
    const int result = maru_pin(client, &name, &view);
    if (result == -ENOENT && ++absent < 1000 + 20 * count) continue;  // the registry was full, or it was evicted
    must(result, "pin");
    ++held;
  }
  say("ready");
  while (!input_ended()) {
    pollfd input = {STDIN_FILENO, 0, 0};
    poll(&input, 1, -1);
  }
  return 0;
}

// Answers "go MS" lines with how much `work` got done in that time.
int answer_go(const std::function<uint64_t()>& work) {
  say("ready");
  std::string line;
  while (std::getline(std::cin, line)) {
    const uint64_t end_ns = now_ns() + std::stoull(line.substr(3)) * 1'000'000;
    uint64_t done = 0;
    while (now_ns() < end_ns) done += work();
    say(std::to_string(done));
  }
  return 0;
}

int play_asking(const std::string& socket_path, uint64_t keys) {
  const Client client(socket_path);
  constexpr uint64_t kBatch = 256, kBatches = 64;
  std::vector<Key> digests(kBatch * kBatches);
  std::vector<maru_key> names(digests.size());
  Random random{uint64_t(getpid())};
  for (size_t i = 0; i < digests.size(); ++i) {
    for (uint64_t tries = 0;; ++tries) {
      digests[i] = key_of(random.below(keys));
      names[i] = as_maru_key(digests[i]);
      const int found = maru_exists(client, &names[i]);
      must(found < 0 ? found : 0, "exists");
      if (found == 1) break;  // the others met a full bucket when they were stored
      if (tries == 100) throw std::runtime_error("stored keys are absent");
    }
  }
  uint8_t present[kBatch];
  return answer_go([&] {
    for (uint64_t batch = 0; batch < kBatches; ++batch) {
      if (maru_exists_batch(client, &names[batch * kBatch], kBatch, present) != int(kBatch)) {
        throw std::runtime_error("a stored key is absent");
      }
    }
    return kBatch * kBatches;
  });
}

int play_spinning() {
  uint64_t value = 1;
  return answer_go([&value] {
    for (int i = 0; i < 100'000; ++i) value = mix(value + 1);
    keep(value);
    return uint64_t(100'000);
  });
}

int play_mapping(uint64_t bytes) {
  const FloorMemory memory(bytes, true);
  say("ready");
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  poll(&input, 1, -1);
  return 0;
}

}  // namespace

uint64_t whole_chains(uint64_t wanted) { return (wanted + kChainBlocks - 1) / kChainBlocks * kChainBlocks; }

uint64_t Chains::incomplete() const { return uint64_t(std::count(complete_.begin(), complete_.end(), false)); }

namespace {

// Deals the buffers of every other chain out again among those chains.
void strew_odd_chains(maru_buffer* buffers, uint64_t chains, Random& random) {
  const auto place = [buffers](uint64_t i) -> maru_buffer& {
    return buffers[(2 * (i / kChainBlocks) + 1) * kChainBlocks + i % kChainBlocks];
  };
  for (uint64_t left = chains / 2 * kChainBlocks; left > 1; --left)
    std::swap(place(left - 1), place(random.below(left)));
}

}  // namespace

Chains store_chains(maru_client* client, uint64_t keys) {
  constexpr uint64_t kTogether = 64;  // chains whose pages are taken at once; half of them share theirs
  Chains chains(keys);
  std::vector<maru_buffer> all(kTogether * kChainBlocks);
  Random random(11);
  Key digests[kChainBlocks];
  maru_key names[kChainBlocks];
  for (uint64_t chain = 0; chain < chains.count(); ++chain) {
    for (uint64_t i = 0; i < kChainBlocks; ++i) {
      digests[i] = key_of(chain * kChainBlocks + i);
      names[i] = as_maru_key(digests[i]);
    }
    if (chain % kTogether == 0) {
      const uint64_t count = std::min(kTogether, chains.count() - chain);
      must(maru_alloc_batch(client, kSmallBytes, count * kChainBlocks, all.data()), "alloc");
      strew_odd_chains(all.data(), count, random);
    }
    maru_buffer* const buffers = &all[chain % kTogether * kChainBlocks];
    size_t done = 0;
    const int result = maru_store_chain(client, names, buffers, kChainBlocks, nullptr, nullptr, nullptr, &done);
    if (result == -EXFULL) {
      chains.end_early(chain);
      must(maru_abort_batch(client, buffers + done, kChainBlocks - done), "abort");
    } else {
      must(result, "store_chain");
    }
  }
  return chains;
}

std::vector<std::unique_ptr<Client>> keep_chains(const std::string& socket_path, Chains& chains) {
  constexpr uint64_t kPinsEach = PoolShape{}.pins_max * 3 / 4;
  std::vector<std::unique_ptr<Client>> keepers;
  maru_key names[kChainBlocks];
  Key digests[kChainBlocks];
  for (uint64_t chain = 0; chain < chains.count(); ++chain) {
    if (chain % kPinsEach == 0) keepers.push_back(std::make_unique<Client>(socket_path));
    const Client& keeper = *keepers.back();
    for (uint64_t i = 0; i < kChainBlocks; ++i) {
      digests[i] = key_of(chain * kChainBlocks + i);
      names[i] = as_maru_key(digests[i]);
    }
    maru_match match;
    must(maru_match_prefix(keeper, names, kChainBlocks, &match), "match_prefix");
    if (match.blocks != kChainBlocks) {
      chains.end_early(chain);
      must(maru_release_match(keeper, &match), "release_match");
    }
  }
  return keepers;
}

bool store_block(maru_client* client, const Key& key, const maru_buffer& buffer, const maru_store_options* options) {
  const maru_key name = as_maru_key(key);
  const int result = maru_store(client, &name, &buffer, options, nullptr);
  if (result == -EXFULL) {
    must(maru_abort(client, &buffer), "abort");
    return false;
  }
  must(result, "store");
  return true;
}

void store_roots(maru_client* client, uint64_t first, uint64_t keys) {
  constexpr uint64_t kAtOnce = 256;
  maru_buffer buffers[kAtOnce];
  for (uint64_t done = 0; done < keys;) {
    const uint64_t count = std::min(kAtOnce, keys - done);
    must(maru_alloc_batch(client, kSmallBytes, count, buffers), "alloc");
    for (uint64_t i = 0; i < count; ++i) store_block(client, key_of(first + done + i), buffers[i]);
    done += count;
  }
}

Facts facts_of(const maru_geometry& geometry, uint64_t keys) {
  Facts facts;
  facts.page_bytes = geometry.page_bytes;
  facts.pool_bytes = geometry.pool_bytes;
  facts.keys = keys;
  facts.huge_pages = pool_has_huge_pages();
  return facts;
}

std::unique_ptr<Child> start_role(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {own_path(), "--role"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto child = std::make_unique<Child>(command);
  if (child->read_line() != "ready") throw std::runtime_error("role " + arguments[0] + " did not get ready");
  return child;
}

int play_role(const std::vector<std::string>& arguments) {
  const std::string& role = arguments.at(0);
  if (role == "storing") return play_storing(arguments.at(1));
  if (role == "holding")
    return play_holding(arguments.at(1), std::stoull(arguments.at(2)), std::stoull(arguments.at(3)));
  if (role == "asking") return play_asking(arguments.at(1), std::stoull(arguments.at(2)));
  if (role == "spinning") return play_spinning();
  if (role == "mapping") return play_mapping(std::stoull(arguments.at(1)));
  throw std::runtime_error("no such role: " + role);
}

}  // namespace maru::bench
