// A layout as bytes and as JSON: round trips, the bytes in literal numbers, and everything that is cut, changed or another's.
#include "maru/layout.h"
#include "tests/support/layout_model.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <set>
#include <string>

namespace {

using namespace maru::test;
using Bytes = std::array<uint8_t, MARU_LAYOUT_ENCODED_BYTES>;

maru_layout part_of_a_model() {
  maru_layout layout =
      make_layout(MARU_LAYOUT_SEPARATE_BLOCK, MARU_LAYOUT_HND, MARU_LAYOUT_BFLOAT16, 2, 1000, 20, 16, 2, 128, 4096);
  layout.heads_total = 8;
  layout.first_head = 4;
  layout.layers_total = 80;
  layout.first_layer = 40;
  return layout;
}

Bytes encoded(const maru_layout& layout) {
  Bytes bytes = {};
  EXPECT_EQ(maru_layout_encode(&layout, bytes.data(), nullptr), 0);
  return bytes;
}

std::string json_of(const maru_layout& layout) {
  char text[MARU_LAYOUT_JSON_BYTES_MAX];
  EXPECT_EQ(maru_layout_to_json(&layout, text, sizeof(text), nullptr), 0);
  return text;
}

bool are_equal(const maru_layout& a, const maru_layout& b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// As the library completes it.
maru_layout complete(maru_layout layout) {
  if (layout.alignment == 0) layout.alignment = 1;
  if (layout.heads_total == 0) layout.heads_total = layout.heads;
  if (layout.layers_total == 0) layout.layers_total = layout.layers;
  return layout;
}

int decode(const Bytes& bytes, std::string& ret_reason) {
  maru_layout layout = {};
  maru_layout_reason reason = {};
  const int status = maru_layout_decode(bytes.data(), bytes.size(), &layout, &reason);
  ret_reason = reason.text;
  return status;
}

TEST(LayoutBytes, GoThereAndBack) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("MARU_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 1000; ++i) {
    const maru_layout layout = random_layout(random);
    const Bytes bytes = encoded(layout);
    maru_layout back = {};
    ASSERT_EQ(maru_layout_decode(bytes.data(), bytes.size(), &back, nullptr), 0);
    ASSERT_TRUE(are_equal(back, complete(layout)));
    const std::string text = json_of(layout);
    maru_layout from_text = {};
    maru_layout_reason reason = {};
    ASSERT_EQ(maru_layout_from_json(text.data(), text.size(), &from_text, &reason), 0) << reason.text;
    ASSERT_TRUE(are_equal(from_text, complete(layout)));
  }
}

// Twice on purpose: a change of the form is a change here.
TEST(LayoutBytes, AreTheDocumentedOnes) {
  const Bytes bytes = encoded(part_of_a_model());
  const uint8_t expected[112] = {
      'M',  'A', 'R', 'U', 'L', 'A', 'Y', 'T', 1,  0,  0, 0, 128, 0, 0, 0,   //
      3,    0,   0,   0,   2,   0,   0,   0,   6,  0,  0, 0, 2,   0, 0, 0,   // kind, order, dtype, outer
      0xE8, 3,   0,   0,   0,   0,   0,   0,   20, 0,  0, 0, 0,   0, 0, 0,   // blocks, layers
      16,   0,   0,   0,   0,   0,   0,   0,   2,  0,  0, 0, 0,   0, 0, 0,   // page_tokens, heads
      128,  0,   0,   0,   0,   0,   0,   0,   0,  16, 0, 0, 0,   0, 0, 0,   // head_dim, alignment
      8,    0,   0,   0,   0,   0,   0,   0,   4,  0,  0, 0, 0,   0, 0, 0,   // heads_total, first_head
      80,   0,   0,   0,   0,   0,   0,   0,   40, 0,  0, 0, 0,   0, 0, 0};  // layers_total, first_layer
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof(expected)), 0);
  uint64_t zero = 1;
  std::memcpy(&zero, &bytes[112], 8);
  EXPECT_EQ(zero, 0);
}

TEST(LayoutBytes, OneFormForEachLayout) {
  maru_layout all = make_layout(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, MARU_LAYOUT_INT8, 1, 5, 4, 3, 2, 1, 0);
  EXPECT_EQ(encoded(all), encoded(complete(all)));
}

TEST(LayoutBytes, CutAtAnyByteAreRefused) {
  const Bytes bytes = encoded(part_of_a_model());
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + long(n));  // so that a read beyond is seen
    maru_layout layout = {};
    maru_layout_reason reason = {};
    ASSERT_EQ(maru_layout_decode(cut.data(), n, &layout, &reason), -EBADMSG) << n;
    ASSERT_EQ(reason.text, "found " + std::to_string(n) + " bytes, expected 128");
    ASSERT_EQ(layout.size, 0u);
  }
  const std::string text = json_of(part_of_a_model());
  for (size_t n = 0; n < text.size(); ++n) {
    const std::vector<char> cut(text.begin(), text.begin() + long(n));
    maru_layout layout = {};
    maru_layout_reason reason = {};
    ASSERT_EQ(maru_layout_from_json(cut.data(), n, &layout, &reason), -EBADMSG) << n;
    ASSERT_NE(std::string(reason.text).find("expected"), std::string::npos) << reason.text;
    ASSERT_EQ(layout.size, 0u);
  }
}

TEST(LayoutBytes, EveryChangedBitIsSeen) {
  const Bytes bytes = encoded(part_of_a_model());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    Bytes changed = bytes;
    changed[bit / 8] ^= uint8_t(1u << bit % 8);
    std::string reason;
    const int status = decode(changed, reason);
    const bool is_version = bit / 8 >= 8 && bit / 8 < 12;
    ASSERT_EQ(status, is_version ? -EPROTONOSUPPORT : -EBADMSG) << "bit " << bit << ": " << reason;
    ASSERT_NE(reason, "");
  }
}

TEST(LayoutBytes, OtherVersionsAreRefusedByName) {
  for (const uint8_t version : {uint8_t{0}, uint8_t{2}}) {
    Bytes bytes = encoded(part_of_a_model());
    bytes[8] = version;
    std::string reason;
    EXPECT_EQ(decode(bytes, reason), -EPROTONOSUPPORT);
    EXPECT_EQ(reason, "the layout has version " + std::to_string(version) + ", and this library reads version 1");
    std::string text = json_of(part_of_a_model());
    text.replace(text.find("\"version\": 1"), 12, "\"version\": " + std::to_string(version));
    maru_layout layout = {};
    maru_layout_reason why = {};
    EXPECT_EQ(maru_layout_from_json(text.data(), text.size(), &layout, &why), -EPROTONOSUPPORT);
    EXPECT_EQ(why.text, reason);
  }
}

TEST(LayoutBytes, TooLongAreRefused) {
  const Bytes bytes = encoded(part_of_a_model());
  std::vector<uint8_t> longer(bytes.begin(), bytes.end());
  longer.push_back(0);
  maru_layout layout = {};
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_layout_decode(longer.data(), longer.size(), &layout, &reason), -EBADMSG);
  EXPECT_STREQ(reason.text, "found 129 bytes, expected 128");
}

// What json_of writes, with one piece in place of another.
int read_changed(const std::string& from, const std::string& to, std::string& ret_reason) {
  std::string text = json_of(part_of_a_model());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  maru_layout layout = {};
  maru_layout_reason reason = {};
  const int status = maru_layout_from_json(text.data(), text.size(), &layout, &reason);
  ret_reason = reason.text;
  return status;
}

TEST(LayoutJson, RefusesByName) {
  const struct {
    const char *from, *to;
    int status;
    const char* words;
  } changes[] = {
      {"\"blocks\": 1000", "\"blocks\": \"1000\"", -EBADMSG, "\"blocks\" is text, expected a number"},
      {"\"bfloat16\"", "16", -EBADMSG, "\"dtype\" is a number, expected text"},
      {"\"bfloat16\"", "\"float17\"", -EINVAL, "dtype is \"float17\""},
      {"\"blocks\": 1000", "\"blocks\": 0", -EINVAL, "blocks is 0, expected 1 to"},
      {"\"blocks\": 1000", "\"blocks\": 01000", -EBADMSG, "leading zeros"},
      {"\"blocks\": 1000", "\"blocks\": 18446744073709551616", -EBADMSG, "below 2^64"},
      {"\"blocks\": 1000", "\"blocks\": 99999999999999999999999999", -EBADMSG, "below 2^64"},
      {"\"blocks\": 1000", "\"blocks\": 18446744073709551615", -EINVAL, "blocks is 18446744073709551615"},
      {"\"blocks\": 1000", "\"blocks\": -1", -EBADMSG, "found '-', expected text or a whole number"},
      {"\"blocks\": 1000", "\"blocks\": 1e3", -EBADMSG, "found 'e', expected a '}'"},
      {"\"blocks\": 1000", "\"blocks\": 1000.0", -EBADMSG, "found '.', expected a '}'"},
      {"\"blocks\": 1000, ", "", -EBADMSG, "lacks the member \"blocks\""},
      {"\"blocks\": 1000", "\"blocks\": 1000, \"blocks\": 1000", -EBADMSG, "\"blocks\" twice"},
      {"\"blocks\": 1000", "\"blocks\": 1000, \"bricks\": 1", -EBADMSG, "\"bricks\", which no layout has"},
      {"\"blocks\"", "\"bl\\u006fcks\"", -EBADMSG, "text without escapes"},
      {"\"maru-layout\"", "\"maru-map\"", -EBADMSG, "the format is \"maru-map\""},
      {"\"outer\": 2", "\"outer\": 4294967297", -EINVAL, "outer is 4294967297"},
      {"\"blocks\": 1000,", "\"blocks\": 1000", -EBADMSG, "found '\"', expected a '}'"},
      {"\"heads\": 2", "\"heads\": 3", -EBADMSG, "the fingerprint is"},
      {"}", "} x", -EBADMSG, "found 'x', expected the end"},
      {"{", "[", -EBADMSG, "at byte 0 of the JSON text: found '[', expected a '{'"},
      {"{", "\xFF", -EBADMSG, "found the byte 0xff"},
  };
  for (const auto& change : changes) {
    std::string reason;
    EXPECT_EQ(read_changed(change.from, change.to, reason), change.status) << change.to << ": " << reason;
    EXPECT_NE(reason.find(change.words), std::string::npos) << change.to << ": " << reason;
  }
}

TEST(LayoutJson, MembersMayBeInAnyOrderAndSomeAbsent) {
  const std::string text =
      "\n{\t\"heads\":8,\"head_dim\" : 64 , "
      "\"page_tokens\":16,\"layers\":2,\"blocks\":7,\"outer\":1,\"dtype\":\"float32\","
      "\"order\":\"nhd\",\r\n\"kind\":\"contiguous\",\"version\":1,\"format\":\"maru-layout\"} ";
  maru_layout layout = {};
  maru_layout_reason reason = {};
  ASSERT_EQ(maru_layout_from_json(text.data(), text.size(), &layout, &reason), 0) << reason.text;
  EXPECT_TRUE(are_equal(
      layout, complete(make_layout(MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_NHD, MARU_LAYOUT_FLOAT32, 1, 7, 2, 16, 8, 64))));
}

TEST(LayoutJson, RoomThatIsTooSmallIsRefused) {
  const maru_layout layout = part_of_a_model();
  const std::string text = json_of(layout);
  std::vector<char> room(text.size() + 1, 'x');
  maru_layout_reason reason = {};
  EXPECT_EQ(maru_layout_to_json(&layout, room.data(), text.size(), &reason), -ENOSPC);
  EXPECT_EQ(room[0], 'x');
  EXPECT_EQ(maru_layout_to_json(&layout, room.data(), room.size(), &reason), 0);
  EXPECT_EQ(text, room.data());
}

TEST(LayoutFingerprint, DiffersWithEachFieldButTheNumberOfBlocks) {
  using Print = std::array<uint8_t, MARU_LAYOUT_FINGERPRINT_BYTES>;
  const auto print_of = [](const maru_layout& layout) {
    Print print = {};
    EXPECT_EQ(maru_layout_fingerprint(&layout, print.data(), nullptr), 0);
    return print;
  };
  const maru_layout layout = part_of_a_model();
  std::set<Print> prints = {print_of(layout)};
  maru_layout more_blocks = layout;
  more_blocks.blocks = 5;
  EXPECT_EQ(prints.count(print_of(more_blocks)), 1u);
  size_t changes = 0;
  for (uint64_t maru_layout::* member :
       {&maru_layout::layers, &maru_layout::page_tokens, &maru_layout::heads, &maru_layout::head_dim,
        &maru_layout::alignment, &maru_layout::heads_total, &maru_layout::first_head, &maru_layout::layers_total,
        &maru_layout::first_layer}) {
    maru_layout changed = layout;
    changed.*member *= 2;
    if (member == &maru_layout::first_head) changed.first_head = 5;
    if (member == &maru_layout::first_layer) changed.first_layer = 41;
    prints.insert(print_of(changed));
    ++changes;
  }
  for (uint32_t maru_layout::* member :
       {&maru_layout::kind, &maru_layout::order, &maru_layout::dtype, &maru_layout::outer}) {
    maru_layout changed = layout;
    changed.*member = 1;
    prints.insert(print_of(changed));
    ++changes;
  }
  EXPECT_EQ(prints.size(), changes + 1);
}

}  // namespace
