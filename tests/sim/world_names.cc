// Names of the world's words, for the trace.
#include "world.h"

#include "maru/format/control_region.h"

#include <cinttypes>
#include <cstdio>

namespace maru::sim {
namespace {

using namespace maru::format;

void describe_ref(uint64_t bits, char* text) {
  const PageRef ref = PageRef::from_bits(bits);
  if (ref.is_none())
    std::snprintf(text, kNameBytes, "none");
  else
    std::snprintf(text, kNameBytes, "page %u.%u", ref.page(), ref.generation());
}

void name_bucket(const char* kind, uint64_t inside, uint64_t value, char* name, char* meaning) {
  const uint64_t index = inside / sizeof(Bucket);
  const uint64_t word = inside % sizeof(Bucket) / 8;
  if (word == 0) {
    std::snprintf(name, kNameBytes, "%s %" PRIu64 " header", kind, index);
    if (kind[0] == 'b') {
      std::snprintf(meaning, kNameBytes, "version %" PRIu64 "%s valid 0x%x", value >> 15,
                    (value & kOverflowFlag) != 0 ? " overflow" : "", unsigned(value & kValidMask));
    }
  } else if (word < 8) {
    std::snprintf(name, kNameBytes, "%s %" PRIu64 " tag %" PRIu64, kind, index, word - 1);
  } else if (word == 8) {
    std::snprintf(name, kNameBytes, "%s %" PRIu64 " link", kind, index);
  } else {
    std::snprintf(name, kNameBytes, "%s %" PRIu64 " location %" PRIu64, kind, index, word - 9);
    describe_ref(value, meaning);
  }
}

void name_lane(uint64_t inside, uint64_t value, char* name, char* meaning) {
  const uint64_t lane = inside / world().layout().lane_bytes;
  const uint64_t word = inside % world().layout().lane_bytes / 8;
  const uint64_t first_pin = sizeof(LaneHeader) / 8;
  const uint64_t pins = world().layout().pin_slots + world().layout().pin_overflow_slots;
  if (word < first_pin) {
    static constexpr const char* kNames[] = {"touch_count", "pin_overflow", "frees"};
    if (word < 3)
      std::snprintf(name, kNameBytes, "lane %" PRIu64 " %s", lane, kNames[word]);
    else if (word >= 8 && word < 16) {
      std::snprintf(name, kNameBytes, "lane %" PRIu64 " intent %" PRIu64, lane, word - 8);
      describe_ref(value, meaning);
    } else
      std::snprintf(name, kNameBytes, "lane %" PRIu64 " word %" PRIu64, lane, word);
  } else if (word < first_pin + pins) {
    std::snprintf(name, kNameBytes, "lane %" PRIu64 " pin %" PRIu64, lane, word - first_pin);
    describe_ref(value, meaning);
  } else if (word * 8 >= world().layout().accounts_offset) {
    static constexpr const char* kNames[] = {"tenant", "in flight", "charged", "returned"};
    const uint64_t at = word - world().layout().accounts_offset / 8;
    std::snprintf(name, kNameBytes, "lane %" PRIu64 " account %" PRIu64 " %s", lane, at / 4, kNames[at % 4]);
  } else {
    std::snprintf(name, kNameBytes, "lane %" PRIu64 " touch %" PRIu64, lane, word - first_pin - pins);
  }
}

}  // namespace

void name_world_word(const void* address, uint64_t value, char* name, char* meaning) {
  const auto* place = static_cast<const std::byte*>(address);
  const WorldPlaces& places = world_places();
  const auto* first_count = static_cast<const std::byte*>(places.pin_counts);
  if (place >= first_count && place < first_count + places.pin_count_bytes) {
    const uint64_t index = uint64_t(place - first_count) / 4;
    std::snprintf(name, kNameBytes, "lane %" PRIu64 " count %" PRIu64, index / kPinCounts, index % kPinCounts);
    return;
  }
  const auto* first_payload = static_cast<const std::byte*>(places.payload);
  if (place >= first_payload && place < first_payload + places.payload_bytes) {
    const uint64_t index = uint64_t(place - first_payload) / 8;
    std::snprintf(name, kNameBytes, "payload %" PRIu64 "[%" PRIu64 "]", index / kPayloadStride, index % kPayloadStride);
    return;
  }
  const auto* memory = static_cast<const std::byte*>(places.memory);
  if (place < memory || place >= memory + world().layout().control_bytes) return;
  const auto offset = uint64_t(place - memory);
  static constexpr const char* kSections[] = {"hosts",       "regions",  "lane identities", "policy",
                                              "tenants",     "blocks",   "details",         "key bytes",
                                              "key extents", "registry", "overflow",        "lanes"};
  for (uint32_t i = 0; i < kSectionCount; ++i) {
    const SectionRecord& record = world().layout().sections[i];
    if (offset < record.offset || offset >= record.offset + record.bytes) continue;
    const uint64_t inside = offset - record.offset;
    std::snprintf(name, kNameBytes, "%s + %" PRIu64, kSections[i], inside);
    if (i == kSectionBlocks) {
      static constexpr const char* kFields[] = {"word",   "digest_lo", "digest_hi", "length",
                                                "parent", "shape",     "chain",     "expires"};
      std::snprintf(name, kNameBytes, "page %" PRIu64 " %s", inside / 64, kFields[inside % 64 / 8]);
      if (inside % 64 == 0) std::snprintf(meaning, kNameBytes, "%s", describe(PageWord{value}));
      if (inside % 64 == 32) describe_ref(value, meaning);
    }
    if (i == kSectionRegistry) name_bucket("bucket", inside, value, name, meaning);
    if (i == kSectionOverflow) name_bucket("overflow", inside, value, name, meaning);
    if (i == kSectionLanes) name_lane(inside, value, name, meaning);
  }
}

const char* describe(PageWord word) {
  static constexpr const char* kStates[] = {"OUT",   "FREE",     "RESERVED", "SEALED",  "TAIL",
                                            "READY", "RETIRING", "RETIRED",  "POISONED"};
  static char text[kNameBytes];
  const auto state = uint32_t(word.state());
  if (state >= kPageStateCount) {
    std::snprintf(text, sizeof text, "no state (0x%" PRIx64 ")", word.bits);
  } else if (word.is(PageState::kReady)) {
    std::snprintf(text, sizeof text, "READY.%u children %u%s", word.generation(), word.children(),
                  word.recount() ? " recount" : "");
  } else if (word.is(PageState::kRetiring)) {
    std::snprintf(text, sizeof text, "RETIRING.%u evictor %u attempt %u", word.generation(), word.low() >> 16,
                  word.low() & 0xffff);
  } else if (word.names_lane()) {
    std::snprintf(text, sizeof text, "%s.%u lane %u.%u", kStates[state], word.generation(), word.lane().lane,
                  word.lane().generation);
  } else {
    std::snprintf(text, sizeof text, "%s.%u low %u", kStates[state], word.generation(), word.low());
  }
  return text;
}

}  // namespace maru::sim
