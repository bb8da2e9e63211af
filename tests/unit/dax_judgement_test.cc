// What becomes of a device, judged by facts alone: no device, no file, no root. tests/unit/dax_pool_test.cc and
// dax_lost_test.cc gather the facts from stand-ins.
#include "daemon/hosting/dax_judgement.h"

#include <cerrno>
#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

using Kind = DeviceLabel::Kind;
using Lack = DaxJudgement::Lack;

constexpr Uuid kOwn = {1, 2, 3, 4, 5, 6, 7, 8, 9}, kOther = {9, 9, 9, 9, 9, 9, 9, 9, 9};
constexpr uint64_t kBytes = 1u << 30;

KnownPool pool() {
  KnownPool known;
  known.spec.pool.name = "default";
  known.spec.dax.device = "/dev/dax0.0";
  known.record_path = "/state/default.json";
  known.boot_id = "now";
  known.claim_number = 7;
  return known;
}

// The pool lay on dax0.0, in memory of this kind and of that boot.
KnownPool pool_of_record(bool is_volatile, const std::string& boot_id) {
  KnownPool known = pool();
  PoolRecord record;
  record.pool = "default";
  record.uuid = kOwn;
  record.device.bytes = kBytes;
  record.boot_id = boot_id;
  record.dax_name = "dax0.0";
  record.is_volatile = is_volatile;
  known.record = record;
  return known;
}

DaxFacts device(Kind kind, const Uuid& uuid = {}) {
  DaxFacts facts;
  facts.name = facts.description.path = "/dev/dax0.0";
  facts.description.name = "dax0.0";
  facts.label.kind = kind;
  facts.label.uuid = uuid;
  facts.label.found = kind == Kind::kNothing ? "" : "something";
  facts.label.header.parameters.pool_bytes = kBytes;
  facts.bytes = kBytes;
  return facts;
}

DaxEvidence content(const std::string& found) {
  DaxEvidence evidence;
  evidence.content = {found.empty(), found};
  return evidence;
}

DaxEvidence belief(Belief belief) {
  DaxEvidence evidence;
  evidence.belief = belief;
  return evidence;
}

// "format", "clear", "adopt", "verify"; "needs ..." what it lacks; or the errno.
std::string text_of(const Result<DaxJudgement>& judged) {
  if (!judged) return std::to_string(judged.error().code);
  if (judged->lacks == Lack::kContent) return "needs content";
  if (judged->lacks == Lack::kBelief) return "needs belief";
  if (judged->lacks == Lack::kOtherPlace) return "needs other place";
  constexpr const char* kFates[] = {"format", "clear", "adopt", "verify"};
  return kFates[size_t(judged->fate)];
}

std::string judged(const KnownPool& known, const DaxFacts& facts, const DaxEvidence& evidence = {}) {
  return text_of(DaxJudge(known).judge(facts, nullptr, evidence));
}

const std::string kRefused = std::to_string(EEXIST);

TEST(DaxJudgement, ABlankDeviceIsFormattedWhenAllOfItWasSeenToBeBlank) {
  EXPECT_EQ(judged(pool(), device(Kind::kNothing)), "needs content");
  EXPECT_EQ(judged(pool(), device(Kind::kNothing), content("")), "format");
  EXPECT_EQ(judged(pool(), device(Kind::kNothing), content("content at byte 8192")), kRefused);
  EXPECT_EQ(judged(pool(), device(Kind::kForeign), content("an ext4 file system")), kRefused);
}

TEST(DaxJudgement, FormatNeverRefusesABlankDevice) {
  KnownPool known = pool();
  known.spec.dax.formats_blank = false;
  EXPECT_EQ(judged(known, device(Kind::kNothing), content("")), std::to_string(ENODATA));
}

TEST(DaxJudgement, ABlankDeviceUnderTheNameOfAKnownPoolIsFormattedOnlyIfThePoolIsNowhere) {
  const KnownPool known = pool_of_record(false, "now");
  DaxEvidence evidence = content("");
  EXPECT_EQ(judged(known, device(Kind::kNothing), evidence), "needs other place");
  evidence.other_place = "/dev/dax1.0";
  EXPECT_EQ(judged(known, device(Kind::kNothing), evidence), kRefused);
  evidence.other_place = "";
  const auto taken = DaxJudge(known).judge(device(Kind::kNothing), nullptr, evidence);
  EXPECT_EQ(text_of(taken), "format");
  EXPECT_NE(taken->warning.find("a new one is made"), std::string::npos) << taken->warning;
  DaxFacts another = device(Kind::kNothing);
  another.description.name = "dax1.0";
  EXPECT_EQ(judged(known, another, content("")), "format");
}

TEST(DaxJudgement, ThePoolThatLiesThereHasTheFateOfTheBeliefInIt) {
  const KnownPool known = pool_of_record(false, "before");
  const DaxFacts facts = device(Kind::kPool, kOwn);
  EXPECT_EQ(judged(known, facts), "needs belief");
  EXPECT_EQ(judged(known, facts, belief(Belief::kAdopt)), "adopt");
  EXPECT_EQ(judged(known, facts, belief(Belief::kVerify)), "verify");
  EXPECT_EQ(judged(known, facts, belief(Belief::kFormat)), "clear");
}

TEST(DaxJudgement, AnotherPoolIsRefused) {
  EXPECT_EQ(judged(pool_of_record(false, "now"), device(Kind::kPool, kOther), belief(Belief::kAdopt)), kRefused);
  KnownPool known = pool();
  EXPECT_EQ(judged(known, device(Kind::kPool, kOther), belief(Belief::kAdopt)), "adopt") << "marud knows no pool yet";
  known.others = {{kOther, "second"}};
  EXPECT_EQ(judged(known, device(Kind::kPool, kOther), belief(Belief::kAdopt)), kRefused) << "the wall between pools";
}

TEST(DaxJudgement, ADeviceThatBecameSmallerIsRefused) {
  DaxFacts facts = device(Kind::kPool, kOwn);
  facts.bytes = kBytes / 2;
  EXPECT_EQ(judged(pool_of_record(false, "now"), facts, belief(Belief::kAdopt)), kRefused);
}

TEST(DaxJudgement, WhatVolatileMemoryHoldsAfterALossOfPowerIsClearedUnlessSeveralHostsShareThePool) {
  const DaxFacts garbage = device(Kind::kForeign);
  EXPECT_EQ(judged(pool_of_record(true, "before"), garbage, content("garbage")), "clear");
  EXPECT_EQ(judged(pool_of_record(true, "now"), garbage, content("garbage")), kRefused) << "no power was lost";
  EXPECT_EQ(judged(pool_of_record(false, "before"), garbage, content("garbage")), kRefused) << "it is persistent";
  EXPECT_EQ(judged(pool_of_record(true, "before"), device(Kind::kData, kOther), content("pages")), kRefused);
  KnownPool shared = pool_of_record(true, "before");
  shared.spec.pool.sharing.is_shared = true;
  EXPECT_EQ(judged(shared, garbage, content("garbage")), kRefused);
}

TEST(DaxJudgement, WhatWasCutOffBeginsAnew) {
  DaxFacts claimed = device(Kind::kClaimed, kOwn);
  claimed.label.claimed_by = 7;
  EXPECT_EQ(judged(pool(), claimed), "format");
  claimed.label.claimed_by = 8;
  EXPECT_EQ(judged(pool(), claimed, content("a claim")), kRefused) << "another machine's";
  DaxFacts given_up = device(Kind::kGivenUp, kOwn);
  EXPECT_EQ(judged(pool(), given_up), "clear");
  given_up.label.is_shared = true;
  EXPECT_EQ(judged(pool(), given_up, content("a mark")), kRefused) << "another host may be clearing it";
  KnownPool clearing = pool_of_record(false, "now");
  clearing.record->is_being_cleared = true;
  EXPECT_EQ(judged(clearing, device(Kind::kNothing)), "clear");
  clearing.record->boot_id = "before";
  EXPECT_EQ(judged(clearing, device(Kind::kNothing)), "needs content") << "zeros of another boot say nothing";
  EXPECT_EQ(judged(clearing, device(Kind::kPool, kOwn)), "clear");
}

TEST(DaxJudgement, PagesGoWithTheirControlRegion) {
  const DaxJudge judge(pool());
  const DaxFacts main = device(Kind::kPool, kOwn);
  DaxFacts pages = device(Kind::kData, kOwn);
  pages.label.data.data_bytes = kBytes;
  EXPECT_EQ(text_of(judge.judge_pages(pages, main, Fate::kAdopt, {})), "adopt");
  EXPECT_EQ(text_of(judge.judge_pages(pages, main, Fate::kClearAndFormat, {})), "clear");
  pages.label.uuid = kOther;
  EXPECT_EQ(text_of(judge.judge_pages(pages, main, Fate::kAdopt, {})), kRefused);
  EXPECT_EQ(text_of(judge.judge_pages(pages, main, Fate::kClearAndFormat, {})), "needs content");
  EXPECT_EQ(text_of(judge.judge_pages(pages, main, Fate::kClearAndFormat, content("pages of another pool"))), kRefused);
  const DaxFacts blank = device(Kind::kNothing);
  EXPECT_EQ(text_of(judge.judge_pages(blank, blank, Fate::kFormat, content(""))), "format");
}

TEST(DaxJudgement, BlankDevicesAreTakenForAPoolThatIsNewOrWentWithThePower) {
  EXPECT_EQ(DaxJudge(pool()).blank_devices(), BlankDevices::kElse);
  EXPECT_EQ(DaxJudge(pool_of_record(false, "before")).blank_devices(), BlankDevices::kNever);
  EXPECT_EQ(DaxJudge(pool_of_record(true, "now")).blank_devices(), BlankDevices::kNever);
  EXPECT_EQ(DaxJudge(pool_of_record(true, "before")).blank_devices(), BlankDevices::kIfAllAreRead);
}

}  // namespace
}  // namespace maru::daemon
