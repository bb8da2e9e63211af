// What others choose, on its way to a log and to a terminal: nothing of it is a control character, and all of it is UTF-8.
#include "daemon/base/plain_text.h"
#include "daemon/base/log.h"

#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

TEST(PlainText, TextStays) {
  for (const char* text :
       {"", "engine", "Käse", "日本語", "\xF0\x9F\xA6\x80", "\xC2\xA0", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(plain_text(text), text);
}

TEST(PlainText, ControlCharactersAreNone) {
  EXPECT_EQ(plain_text(std::string_view("\0a\x1b[2J\n\x7f", 8)), "?a?[2J??");
  EXPECT_EQ(plain_text("\xC2\x80x\xC2\x9B[2J\xC2\x9F"), "?x?[2J?") << "C1, which terminals obey too";
  EXPECT_EQ(plain_text("a\tb\nc\x1b", std::string_view::npos, "\n\t"), "a\tb\nc?");
}

TEST(PlainText, WhatIsNotUtf8IsNone) {
  EXPECT_EQ(plain_text("a\xFF"), "a?");
  EXPECT_EQ(plain_text("\x9B[2J"), "?[2J");
  EXPECT_EQ(plain_text("a\xC3"), "a?") << "the character ends too early";
  EXPECT_EQ(plain_text("\xC3("), "?(");
  EXPECT_EQ(plain_text("\xC0\xAF"), "??") << "too long for what it is";
  EXPECT_EQ(plain_text("\xC1\xBF"), "??");
  EXPECT_EQ(plain_text("\xE0\x9F\xBF"), "???");
  EXPECT_EQ(plain_text("\xED\xA0\x80"), "???") << "half of a pair";
  EXPECT_EQ(plain_text("\xF4\x90\x80\x80"), "????") << "beyond the last character";
  EXPECT_EQ(plain_text("\xF0\x9F\xA6"), "???");
}

TEST(PlainText, IsCutBetweenCharacters) {
  EXPECT_EQ(plain_text("aäb", 4), "aäb");
  EXPECT_EQ(plain_text("aäb", 3), "aä");
  EXPECT_EQ(plain_text("aäb", 2), "a");
  EXPECT_EQ(plain_text("a\xFF", 1), "a");
}

TEST(PlainText, SoIsWhatGoesToTheLog) {
  EXPECT_EQ(printable("engine\xFF\xC2\x9B"), "engine??");
  std::string long_name;
  for (int i = 0; i < 200; ++i) long_name += i == 0 ? "a" : "ä";
  EXPECT_EQ(printable(long_name), long_name.substr(0, 255));
}

}  // namespace
}  // namespace maru::daemon
