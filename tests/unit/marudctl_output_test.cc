// What marudctl prints for people: a line fits the terminal, and nothing steers it.
#include "daemon/tools/marudctl/output.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace maru::marudctl {
namespace {

using nlohmann::json;

json two_blocks() {
  return json::array(
      {{{"key", std::string(100, 'a') + "END"}, {"page", 7}, {"length_bytes", 16384}, {"nested", {1, 2}}},
       {{"key", "short"}, {"page", 12345678}, {"length_bytes", 1}, {"nested", {1, 2}}}});
}

size_t widest_line(const std::string& text) {
  size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(MarudctlOutput, TablesFitTheTerminalAndKeepBothEndsOfAKey) {
  const std::string table = table_text(two_blocks(), {"key", "page", "length_bytes"}, "none", 80);
  EXPECT_EQ(widest_line(table), 80u) << table;
  EXPECT_NE(table.find("aaa..aaa"), std::string::npos) << table;
  EXPECT_NE(table.find("aEND "), std::string::npos) << table;
  EXPECT_NE(table.find("12345678"), std::string::npos) << "numbers are never cut\n" << table;
}

TEST(MarudctlOutput, LongFieldsGoOnBelowThemselves) {
  const std::string reason = "found one thing and then another, expected a third thing, which there is not";
  const json pool = {{"name", "far"}, {"reason", reason}, {"inner", {{"reason", reason}}}};
  const std::string fields = fields_text(pool, {"name", "reason"}, 41);
  EXPECT_LE(widest_line(fields), 41u) << fields;
  EXPECT_NE(fields.find("\nreason  found one thing and then another,\n        expected a third thing,"),
            std::string::npos)
      << fields;
  EXPECT_NE(fields_text(pool, {}).find("reason  " + reason + "\n"), std::string::npos);
}

TEST(MarudctlOutput, NothingIsCutWithoutATerminal) {
  EXPECT_NE(table_text(two_blocks(), {"key"}, "none").find(std::string(100, 'a') + "END"), std::string::npos);
}

TEST(MarudctlOutput, ATerminalMayBeTooNarrow) {
  EXPECT_GT(widest_line(table_text(two_blocks(), {"key", "page", "length_bytes"}, "none", 5)), 5u);
}

TEST(MarudctlOutput, OnlyWantedColumnsAreShown) {
  const std::string table = table_text(two_blocks(), {"page", "absent"}, "none");
  EXPECT_EQ(table, "    PAGE\n       7\n12345678\n");
  EXPECT_EQ(table_text(json::array(), {"page"}, "none"), "none\n");
}

TEST(MarudctlOutput, NumbersComeWithTheirUnits) {
  const std::string text = fields_text({{"rents", 3},
                                        {"rents_us", 1234},
                                        {"quick_us", 999},
                                        {"slow_us", 61'000'000},
                                        {"fragmentation_percent", 12},
                                        {"waits_ms", 250},
                                        {"room_bytes", 4096}},
                                       {"rents", "rents_us", "quick_us", "slow_us"});
  EXPECT_NE(text.find("rents          3\nrents time     1.2 ms\n"), std::string::npos) << text;
  EXPECT_NE(text.find("quick time     999 us\nslow time      61 s\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fragmentation  12 %\n"), std::string::npos) << text;
  EXPECT_NE(text.find("room           4 KiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("waits          0.2 s\n"), std::string::npos) << text;
}

TEST(MarudctlOutput, CharactersAreNotCutInTheirMiddle) {
  std::string umlauts;
  for (int i = 0; i < 40; ++i) umlauts += "\xC3\xA4";
  const std::string table = table_text(json::array({{{"command", umlauts}}}), {"command"}, "none", 11);
  EXPECT_NE(table.find("\xC3\xA4..\xC3\xA4"), std::string::npos);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\xC3'), 9);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\xA4'), 9);
}

TEST(MarudctlOutput, ControlCharactersDoNotReachTheTerminal) {
  const std::string table = table_text(json::array({{{"command", "\x1b[2Jx\x7f\xC2\x9B"}}}), {"command"}, "none");
  EXPECT_NE(table.find("?[2Jx??"), std::string::npos) << table;
}

TEST(MarudctlOutput, WhatIsNotKnownIsADash) {
  const std::string table = table_text(json::array({{{"age_ms", nullptr}}, {{"age_ms", 90'000}}}), {"age_ms"}, "none");
  EXPECT_EQ(table, " AGE\n   -\n90 s\n");
}

}  // namespace
}  // namespace maru::marudctl
