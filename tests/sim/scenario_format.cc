// Hosts that find the same memory blank and format it: one of them does, whoever dies over it. docs/format.md, "Format".
//
// Nobody formats beside another host that lives, nor what somebody serves already; a header that is valid stays as it is, and
// the pages are labelled for it; and memory is blank, claimed, or a pool, so that the next marud of the same host can go on.
// A host that loses power takes with it what it wrote between the claim and the magic number, too: header, zeros, uuid.
// And memory that is cleared, before it is formatted: "Give up".
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/format_claim.h"
#include "maru/format/control_region.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace maru::sim {
namespace {

using shm::FormatClaim;

constexpr unsigned kHosts = 3, kNobodyYet = kHosts;
constexpr size_t kMemoryBytes = 128u << 10;
alignas(4096) std::byte memory[kMemoryBytes];
// The label of the pages, as far as it tells whose they are.
struct alignas(64) Label {
  AtomicU64 magic, uuid[2];
};
Label label;
constexpr uint64_t kLabelMagic = 0x3154414455524d4d;

unsigned formatter;  // the host that has the claim
bool is_served;      // somebody has found a valid header
uint8_t served_uuid[16];

std::span<std::byte> bytes() { return memory; }
unsigned host_of(unsigned process) { return process / 2; }
// A number of the host's machine, as in the claim.
uint32_t machine_of_host(unsigned host) { return host + 1; }
uint64_t first_word() { return reinterpret_cast<AtomicU64*>(memory)->load_acquire(); }

format::Parameters parameters() {
  format::Parameters wanted{};
  wanted.pool_bytes = 1u << 20;
  wanted.page_bytes = limits::kPageBytesMin;
  wanted.region_pages = wanted.pages = 4;
  wanted.lanes = 2 * kHosts;
  wanted.hosts = kHosts;
  wanted.tenants = 1;
  wanted.pins_max = 8;
  wanted.touch_entries = 8;
  wanted.key_inline_bytes = limits::kKeyInlineMin;
  wanted.key_extents = 2;
  wanted.section_align = 4096;
  return wanted;
}

// SplitDevice::label_pages(), and what HostedPool looks at before: pages of another pool are not taken.
void label_pages(unsigned host, const uint8_t (&uuid)[16]) {
  uint64_t words[2];
  std::memcpy(words, uuid, sizeof(words));
  const bool is_labelled = label.magic.load_acquire() == kLabelMagic;
  for (unsigned i = 0; i < 2; ++i)
    if (is_labelled && label.uuid[i].load_acquire() != words[i]) fail("host %u finds the pages of another pool", host);
  for (unsigned i = 0; i < 2; ++i) label.uuid[i].store_relaxed(words[i]);
  label.magic.store_release(kLabelMagic);
  shm::flush_lines(&label, sizeof(label));
}

// As Pool::format() does. False: another host has the memory.
bool format_memory(unsigned host) {
  shm::FormatIdentity identity = {};
  for (uint8_t& byte : identity.uuid) byte = uint8_t(1 + chance().below(255));
  identity.shared = identity.checksums = true;
  FormatClaim found;
  if (!shm::claim_format(bytes(), machine_of_host(host), &found)) return false;
  if (is_served) fail("host %u formats a pool that is served", host);
  if (formatter != kNobodyYet && formatter != host && !host_died(formatter))
    fail("hosts %u and %u format at once", formatter, host);
  formatter = host;
  note("host %u formats", host);
  shm::settle_uuid(bytes(), identity.uuid);
  label_pages(host, identity.uuid);
  shm::ControlRegion region;
  if (const char* problem = shm::ControlRegion::format(bytes(), parameters(), identity, false, &region))
    fail("host %u cannot format: %s", host, problem);
  shm::flush(region, memory, region.layout().control_bytes);
  return true;
}

// Whoever meets the magic number.
void serve(unsigned host) {
  if (host < kHosts) settle();  // the header is read plainly
  shm::ControlRegion region;
  format::Header header;
  std::memcpy(&header, memory, sizeof(header));
  if (const char* problem = shm::ControlRegion::attach(bytes(), parameters().pool_bytes, &region))
    fail("host %u finds a magic number, and %s", host, problem);
  if (host < kHosts && !mutant(kMutantServeUnflushed)) shm::flush_lines(memory, sizeof(header));
  if (is_served && std::memcmp(header.uuid, served_uuid, sizeof(served_uuid)) != 0)
    fail("host %u finds another pool than the one that is served", host);
  is_served = true;
  std::memcpy(served_uuid, header.uuid, sizeof(served_uuid));
  for (unsigned i = 0; i < 2; ++i) {
    uint64_t word;
    std::memcpy(&word, header.uuid + 8 * i, 8);
    if (label.magic.load_acquire() != kLabelMagic || label.uuid[i].load_acquire() != word)
      fail("host %u finds a pool whose pages are labelled for another one", host);
  }
  for (uint32_t page = 0; page < region.pages(); ++page)
    if (region.block(page).word.raw != 0) fail("page %u of a new pool is in use", page);
  for (uint32_t waits = host < kHosts ? chance().below(8) : 0; waits > 0; --waits) yield();  // clients
}

void marud_life(void* argument) {
  const auto host = unsigned(reinterpret_cast<uintptr_t>(argument));
  for (uint32_t looks = 2 + chance().below(4); looks > 0; --looks) {
    const uint64_t found = first_word();
    if (found == format::kMagic) return serve(host);
    const bool is_own = found == FormatClaim::of(machine_of_host(host)).bits;
    if (found == 0 || is_own) {
      if (format_memory(host)) return serve(host);
    }
    yield();  // it is told, and somebody starts it again
  }
}

void next_marud(void* argument) {
  const auto host = unsigned(reinterpret_cast<uintptr_t>(argument));
  wait_for_process(2 * host);
  if (process_died(2 * host)) marud_life(argument);
}

void setup() {
  std::memset(memory, 0, sizeof(memory));
  label = {};
  formatter = kNobodyYet;
  is_served = false;
  // What another one left, behind a beginning that is zeros.
  if (chance().chance(2)) std::memset(memory + 2 * sizeof(format::Header), 0x5a, 4096);
  unsigned maruds = 0;
  const unsigned hosts = chance().chance(3) ? 1 : kHosts;  // one alone: nobody else's look brings its lines into memory
  for (unsigned host = 0; host < hosts; ++host) {
    void* argument = reinterpret_cast<void*>(uintptr_t(host));
    spawn("marud", 2 * host, marud_life, argument);
    spawn("next marud", 2 * host + 1, next_marud, argument);
    maruds |= 1u << (2 * host);
  }
  track_lines(memory, sizeof(memory));
  track_lines(&label, sizeof(label));
  lose_plain_stores();
  play_hosts(host_of, [](unsigned) {});
  allow_deaths(maruds, 2);
  if (chance().chance(2)) allow_host_death(0b011);
}

void finish() {
  const uint64_t word = reinterpret_cast<AtomicU64*>(memory)->raw;
  if (word == format::kMagic) return serve(kHosts);
  if (is_served)
    fail("the pool that was served is gone: its first word is %#llx", static_cast<unsigned long long>(word));
  const FormatClaim claim{word};
  if (word != 0 && (!claim.is_one() || claim.machine() == 0 || claim.machine() > kHosts))
    fail("nobody can go on with memory that begins with %#llx", static_cast<unsigned long long>(word));
  // The next marud of that machine knows the pages by the claim's uuid.
  uint64_t uuid[2];
  std::memcpy(uuid, shm::claimed_uuid(bytes()).data(), sizeof(uuid));
  if (label.magic.raw == kLabelMagic && (label.uuid[0].raw != uuid[0] || label.uuid[1].raw != uuid[1]))
    fail("the pages are labelled for another pool than the one that is claimed");
}

// -- clearing ---------------------------------------------------------------------------------------------------------
// One machine, of which a host is one boot: whoever dies over clearing memory leaves it as it was, marked, or zero all over.

constexpr uint8_t kGivenUp = 0x5a;
constexpr size_t kStep = 1024, kCleared = 4 * kStep;
std::span<std::byte> cleared() { return bytes().first(kCleared); }

bool is_all(std::span<const std::byte> part, uint8_t value) {
  return std::all_of(part.begin(), part.end(), [=](std::byte b) { return b == std::byte(value); });
}

void check_what_is_left(const char* who) {
  const uint64_t word = first_word();
  if (shm::ClearingMark{word}.is_one() || (word == 0 && is_all(cleared(), 0))) return;
  if (!is_served && is_all(cleared(), kGivenUp)) return;
  fail("%s cannot tell what memory holds that begins with %#llx", who, static_cast<unsigned long long>(word));
}

void clearing_life(void*) {
  settle();  // what is looked at plainly
  check_what_is_left("a marud");
  if (first_word() == 0) return;
  uint8_t uuid[16];
  std::memset(uuid, 0x11, sizeof(uuid));
  shm::begin_clearing(cleared(), false, uuid);
  for (size_t at = shm::kMarkedBytes; at < kCleared; at = at / kStep * kStep + kStep) {
    const auto part = cleared().subspan(at, kStep - at % kStep);
    std::memset(part.data(), 0, part.size());
    shm::flush_lines(part.data(), part.size());
    yield();
  }
  shm::end_clearing(cleared());
  is_served = true;
}

void next_clearing(void* argument) {
  wait_for_process(unsigned(reinterpret_cast<uintptr_t>(argument)));
  clearing_life(nullptr);
}

void setup_clearing() {
  std::memset(memory, kGivenUp, kCleared);
  is_served = false;
  spawn("marud", 0, clearing_life, nullptr);
  spawn("next marud", 1, next_clearing, reinterpret_cast<void*>(uintptr_t{0}));
  spawn("marud of the next boot", 2, next_clearing, reinterpret_cast<void*>(uintptr_t{1}));
  track_lines(memory, kCleared);
  lose_plain_stores();
  play_hosts(host_of, [](unsigned) {});
  allow_deaths(0b111, 3);
  if (chance().chance(2)) allow_host_death(0b001);
}

void finish_clearing() {
  check_what_is_left("the next marud");
  if (is_served && first_word() != 0) fail("what was cleared is not zero");
}

constexpr Scenario kScenarios[] = {
    {"format", "hosts find the same memory blank, and die over formatting it", setup, finish, nullptr},
    {"give-up", "a machine dies over clearing memory that is given up", setup_clearing, finish_clearing, nullptr},
};

}  // namespace

std::span<const Scenario> format_scenarios() { return kScenarios; }

}  // namespace maru::sim
