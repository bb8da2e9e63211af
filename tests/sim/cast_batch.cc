// Calls with several keys: all pins of a call are written before one barrier, and all words are looked at after it; all headers
// of a group are read before the first bucket is compared.
#include "cast.h"

#include "libmaru/shm/blocks/find_batch.h"

#include <array>

namespace maru::sim {

uint32_t retrieve_batch(Client& who, std::span<const uint32_t> keys) {
  std::array<Digest, kBatchMax> digests;
  std::array<shm::Found, kBatchMax> found;
  for (size_t i = 0; i < keys.size(); ++i) digests[i] = key_digest(keys[i]);
  const uint64_t start = steps();
  if (!shm::find_and_pin_batch(who.context, {digests.data(), keys.size()}, now_ms(), found.data())) return 0;
  uint32_t hits = 0;
  bool misses = false;
  for (size_t i = 0; i < keys.size(); ++i) {
    misses |= found[i].status != shm::FindStatus::kFound;
    if (found[i].status != shm::FindStatus::kFound) continue;
    hold(who.process, found[i].ref);
    expect_named(found[i].ref, keys[i], start);
    ++hits;
  }
  if (misses && compare_result()) {
    for (size_t i = 0; i < keys.size(); ++i)
      if (found[i].status != shm::FindStatus::kFound && !was_absent_since(keys[i], start))
        fail("key %u was missed and was there all the time", keys[i]);
  }
  for (size_t i = 0; i < keys.size(); ++i)
    if (found[i].status == shm::FindStatus::kFound) {
      check_payload(found[i].ref.page(), keys[i], "a reader of many");
      check_metadata(found[i].ref.page(), keys[i], "a reader of many");
    }
  for (size_t i = 0; i < keys.size(); ++i)
    if (found[i].status == shm::FindStatus::kFound) release(who, {found[i].ref, found[i].slot});
  return hits;
}

uint32_t exists_batch(std::span<const uint32_t> keys) {
  std::array<Digest, kBatchMax> digests;
  std::array<uint8_t, kBatchMax> present;
  for (size_t i = 0; i < keys.size(); ++i) digests[i] = key_digest(keys[i]);
  const uint64_t start = steps();
  const size_t count = shm::registry_exists_batch(world(), digests.data(), keys.size(), present.data());
  size_t said = 0;
  for (size_t i = 0; i < keys.size(); ++i) said += present[i];
  if (said != count) fail("exists_batch counts %zu and shows %zu", count, said);
  if (!compare_result()) return uint32_t(count);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (present[i] && !was_listed_since(keys[i], start))
      fail("exists_batch says yes to key %u and no entry had its tag", keys[i]);
    if (!present[i] && !was_absent_since(keys[i], start))
      fail("exists_batch says no to key %u and it was there all the time", keys[i]);
  }
  return uint32_t(count);
}

}  // namespace maru::sim
