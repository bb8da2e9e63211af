// The engine behind include/maru/format/atomic_word.h that relacy plays: each word of the control region that a play touches
// is one of relacy's atomics. Which words these are, the first iterations find; then the set is fixed, since relacy repeats an
// iteration that has failed and must find the same accesses.
#include "tests/sim/relacy_memory.h"

#include "maru/format/atomic_word.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <streambuf>

#include <relacy/relacy.hpp>

namespace maru::relacy {
namespace {

constexpr unsigned kWordsMax = 160;
constexpr unsigned kDiscoveryIterations = 30'000, kRightIterations = 100'000, kWrongIterations = 300'000;

// What relacy says about a failure that is wanted.
struct Silence : std::streambuf {
  int overflow(int c) override { return c; }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

struct Word {
  void* address;
  unsigned bytes;
};
// Arrays, since relacy replaces the heap.
struct WordList {
  Word words[kWordsMax];
  unsigned count = 0;
  bool is_full() const { return count == kWordsMax; }
  void add(Word word) {
    if (!is_full()) words[count++] = word;
  }
};
WordList words_of_play, words_met;
constexpr size_t kNumbers = 4096;
uint16_t word_numbers[kNumbers];  // by a hash of the address: the word's number + 1
bool discovers;                   // words that are met for the first time are added before the next iteration
bool is_direct = true;            // setup and finish: nobody else runs
unsigned strange_words;

const Play* running_play;
unsigned running_mutant;

uint64_t read_memory(const void* address, unsigned bytes) {
  return bytes == 8 ? *static_cast<const uint64_t*>(address) : *static_cast<const uint32_t*>(address);
}
void write_memory(void* address, unsigned bytes, uint64_t value) {
  if (bytes == 8)
    *static_cast<uint64_t*>(address) = value;
  else
    *static_cast<uint32_t*>(address) = uint32_t(value);
}

// The place of a word's number: where that is, or where it would be.
uint16_t& number_of(const void* address) {
  size_t at = reinterpret_cast<uintptr_t>(address) / 4 * 0x9e3779b97f4a7c15 >> 52;
  while (word_numbers[at] != 0 && words_of_play.words[word_numbers[at] - 1].address != address)
    at = (at + 1) % kNumbers;
  return word_numbers[at];
}

void add_words_met() {
  for (unsigned i = 0; i < words_met.count; ++i) {
    uint16_t& number = number_of(words_met.words[i].address);
    if (number != 0 || words_of_play.is_full()) continue;
    words_of_play.add(words_met.words[i]);
    number = uint16_t(words_of_play.count);
  }
  words_met.count = 0;
}

void forget_words() {
  words_of_play.count = words_met.count = 0;
  std::fill(word_numbers, word_numbers + kNumbers, uint16_t{0});
}

struct PlayTest;
PlayTest* running_test;

struct PlayTest : rl::test_suite<PlayTest, kThreads> {
  rl::atomic<uint64_t> words[kWordsMax];
  rl::var<int> payloads[kPayloads];

  void before() {
    running_test = this;
    is_direct = true;
    add_words_met();
    for (auto& payload : payloads) payload($) = 0;
    running_play->before();
    for (unsigned i = 0; i < words_of_play.count; ++i) {
      const Word& word = words_of_play.words[i];
      words[i].store(read_memory(word.address, word.bytes), rl::mo_relaxed, $);
    }
    is_direct = false;
  }

  void thread(unsigned number) { running_play->thread(number); }

  void after() {
    is_direct = true;
    for (unsigned i = 0; i < words_of_play.count; ++i) {
      const Word& word = words_of_play.words[i];
      write_memory(word.address, word.bytes, words[i].load(rl::mo_relaxed, $));
    }
    running_play->after();
  }
};

// relacy's atomic of a word; null for one that is met for the first time, on which the caller acts in plain memory.
rl::atomic<uint64_t>* atomic_of(const void* address, unsigned bytes) {
  if (is_direct) return nullptr;
  if (const uint16_t number = number_of(address); number != 0) return &running_test->words[number - 1];
  if (discovers)
    words_met.add({const_cast<void*>(address), bytes});
  else
    ++strange_words;
  return nullptr;
}

rl::memory_order order_of(sim::Order order) {
  switch (order) {
    case sim::Order::kRelaxed: return rl::mo_relaxed;
    case sim::Order::kAcquire: return rl::mo_acquire;
    case sim::Order::kRelease: return rl::mo_release;
    case sim::Order::kAcqRel: return rl::mo_acq_rel;
    case sim::Order::kSeqCst: break;
  }
  return rl::mo_seq_cst;
}

// *ret_iterations (may be null): how many there were, up to the one that failed.
bool passes(unsigned iterations, std::ostream& output, unsigned* ret_iterations) {
  Silence silence;
  std::ostream nowhere(&silence);
  rl::test_params parameters;
  parameters.iteration_count = iterations;
  parameters.output_stream = &output;
  parameters.progress_stream = &nowhere;
  rl::simulate<PlayTest>(parameters);
  if (ret_iterations != nullptr) *ret_iterations = unsigned(parameters.stop_iteration);
  return parameters.test_result == rl::test_result_success;
}

}  // namespace

void write_payload(unsigned page, int value) { running_test->payloads[page]($) = value; }
int read_payload(unsigned page) { return running_test->payloads[page]($); }
void expect(bool holds) { RL_ASSERT(holds); }

bool is_as_it_should_be(const Play& play, const char* name, unsigned mutant) {
  Silence silence;
  std::ostream nowhere(&silence);
  if (running_play != &play) {
    running_play = &play;
    forget_words();
    running_mutant = 0;
    discovers = true;
    passes(kDiscoveryIterations, nowhere, nullptr);
    add_words_met();
    discovers = false;
  }
  running_mutant = mutant;
  strange_words = 0;
  const bool is_right = mutant == 0;
  unsigned iterations = 0;
  const bool has_passed =
      passes(is_right ? kRightIterations : kWrongIterations, is_right ? std::cout : nowhere, &iterations);
  const bool knows_all = !words_of_play.is_full() && (strange_words == 0 || !is_right);
  const bool ok = has_passed == is_right && knows_all;
  const char* verdict = !knows_all ? "MEETS WORDS THAT IT DOES NOT KNOW"
                        : ok       ? "as it should be"
                        : is_right ? "FAILS"
                                   : "PASSES AND MUST NOT";
  std::printf("%-10s %-44s %3u words %8u iterations  %s\n", play.name, name, words_of_play.count, iterations, verdict);
  std::fflush(stdout);
  return ok;
}

}  // namespace maru::relacy

// -- what atomic_word.h, flush.h and mutants.h declare for a simulator ----------------------------------------------------

namespace maru::sim {

using relacy::atomic_of;
using relacy::order_of;

uint64_t on_load(const void* address, unsigned bytes, Order order) {
  if (auto* atomic = atomic_of(address, bytes)) return atomic->load(order_of(order), $);
  return relacy::read_memory(address, bytes);
}

void on_store(void* address, unsigned bytes, uint64_t value, Order order) {
  if (auto* atomic = atomic_of(address, bytes)) return atomic->store(value, order_of(order), $);
  relacy::write_memory(address, bytes, value);
}

uint64_t on_exchange(void* address, unsigned bytes, uint64_t value, Order order) {
  if (auto* atomic = atomic_of(address, bytes)) return atomic->exchange(value, order_of(order), $);
  const uint64_t before = relacy::read_memory(address, bytes);
  relacy::write_memory(address, bytes, value);
  return before;
}

uint64_t on_fetch_add(void* address, unsigned bytes, uint64_t value, Order order) {
  if (auto* atomic = atomic_of(address, bytes)) {
    if (bytes == 8) return atomic->fetch_add(value, order_of(order), $);
    for (uint64_t found = atomic->load(rl::mo_relaxed, $);;)  // a word of 32 bits wraps at 32 bits
      if (atomic->compare_exchange_strong(found, uint32_t(found + value), order_of(order), $)) return found;
  }
  const uint64_t before = relacy::read_memory(address, bytes);
  relacy::write_memory(address, bytes, before + value);
  return before;
}

uint64_t on_cas(void* address, unsigned bytes, uint64_t expected, uint64_t desired, Order order) {
  if (auto* atomic = atomic_of(address, bytes)) {
    atomic->compare_exchange_strong(expected, desired, order_of(order), $);
    return expected;
  }
  const uint64_t found = relacy::read_memory(address, bytes);
  if (found == expected) relacy::write_memory(address, bytes, desired);
  return found;
}

void on_flush(const void*, size_t) {}

bool mutant(unsigned id) { return relacy::running_mutant == id; }

}  // namespace maru::sim
