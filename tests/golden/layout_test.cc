// The layout once more, in literal numbers, so that a change is made twice on purpose. What this test refuses is a new
// major version.
#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/pool_sizing.h"
#include "maru/format/data_label.h"

#include <cstddef>
#include <gtest/gtest.h>

namespace maru::shm {
namespace {

using namespace maru::format;

#define EXPECT_PLACE(type, member, offset) EXPECT_EQ(offsetof(type, member), size_t{offset})

TEST(Layout, Constants) {
  EXPECT_EQ(kMagic, 0x314c54435552414du);
  EXPECT_EQ(kVersionMajor, 1u);
  EXPECT_EQ(kVersionMinor, 2u);
  EXPECT_EQ(kIncompatShared, 1u);
  EXPECT_EQ(kIncompatDurable, 2u);
  EXPECT_EQ(kIncompatBoundChecksums, 4u);
  EXPECT_EQ(kIncompatMetadata, 8u);
  EXPECT_EQ(length_word(1, 1), 0x0000800000000001u);
  EXPECT_EQ(payload_bytes_of(0xffffffffffffffff), 0x00007fffffffffffu);
  EXPECT_EQ(metadata_bytes_of(0xffffffffffffffff), 0x1ffffu);
  EXPECT_EQ(metadata_offset(1), 64u);
  EXPECT_EQ(metadata_offset(64), 64u);
  EXPECT_EQ(limits::kMetadataBytesMax, 65536u);
  EXPECT_EQ(kCompatChecksums, 1u);
  EXPECT_EQ(kHashFeistel3Siphash24, 2u);
  EXPECT_EQ(kRecountFlag, 134217728u);
  EXPECT_EQ(kValidMask, 16383u);
  EXPECT_EQ(kOverflowFlag, 16384u);
  EXPECT_EQ(kHeaderVersionOne, 32768u);
}

TEST(Layout, Header) {
  EXPECT_EQ(sizeof(Header), 4096u);
  EXPECT_PLACE(Header, magic, 0);
  EXPECT_PLACE(Header, version_major, 8);
  EXPECT_PLACE(Header, version_minor, 12);
  EXPECT_PLACE(Header, header_bytes, 16);
  EXPECT_PLACE(Header, compat_flags, 24);
  EXPECT_PLACE(Header, incompat_flags, 32);
  EXPECT_PLACE(Header, hash_algorithm, 40);
  EXPECT_PLACE(Header, uuid, 48);
  EXPECT_PLACE(Header, created_unix_ms, 64);
  EXPECT_PLACE(Header, parameters, 72);
  EXPECT_PLACE(Header, control_bytes, 144);
  EXPECT_PLACE(Header, buckets, 152);
  EXPECT_PLACE(Header, overflow_buckets, 160);
  EXPECT_PLACE(Header, sections, 168);
  EXPECT_PLACE(Header, secret, 360);
  EXPECT_PLACE(Header, reserved1, 488);
  EXPECT_PLACE(Header, checksum, 4088);
}

TEST(Layout, Parameters) {
  EXPECT_EQ(sizeof(Parameters), 72u);
  EXPECT_PLACE(Parameters, pool_bytes, 0);
  EXPECT_PLACE(Parameters, page_bytes, 8);
  EXPECT_PLACE(Parameters, region_pages, 16);
  EXPECT_PLACE(Parameters, pages, 24);
  EXPECT_PLACE(Parameters, lanes, 32);
  EXPECT_PLACE(Parameters, hosts, 36);
  EXPECT_PLACE(Parameters, tenants, 40);
  EXPECT_PLACE(Parameters, pins_max, 44);
  EXPECT_PLACE(Parameters, touch_entries, 48);
  EXPECT_PLACE(Parameters, key_inline_bytes, 52);
  EXPECT_PLACE(Parameters, key_extents, 56);
  EXPECT_PLACE(Parameters, section_align, 64);
}

TEST(Layout, SectionsInTheirOrder) {
  EXPECT_EQ(kSectionHosts, 0);
  EXPECT_EQ(kSectionRegions, 1);
  EXPECT_EQ(kSectionLaneIdentities, 2);
  EXPECT_EQ(kSectionPolicy, 3);
  EXPECT_EQ(kSectionTenants, 4);
  EXPECT_EQ(kSectionBlocks, 5);
  EXPECT_EQ(kSectionDetails, 6);
  EXPECT_EQ(kSectionKeyBytes, 7);
  EXPECT_EQ(kSectionKeyExtents, 8);
  EXPECT_EQ(kSectionRegistry, 9);
  EXPECT_EQ(kSectionOverflow, 10);
  EXPECT_EQ(kSectionLanes, 11);
  EXPECT_EQ(kSectionCount, 12);
}

TEST(Layout, PageStates) {
  EXPECT_EQ(int(PageState::kOut), 0);
  EXPECT_EQ(int(PageState::kFree), 1);
  EXPECT_EQ(int(PageState::kReserved), 2);
  EXPECT_EQ(int(PageState::kSealed), 3);
  EXPECT_EQ(int(PageState::kTail), 4);
  EXPECT_EQ(int(PageState::kReady), 5);
  EXPECT_EQ(int(PageState::kRetiring), 6);
  EXPECT_EQ(int(PageState::kRetired), 7);
  EXPECT_EQ(int(PageState::kPoisoned), 8);
  EXPECT_EQ(PageWord::reserved(0x12345678, {0xABC, 0xDEF0}).bits, 0x212345678ABCDEF0u);
  EXPECT_EQ(PageWord::ready(1, 2).bits, 0x5000000010000002u);
  EXPECT_EQ(PageWord::ready(1, 2, true).bits, 0x5000000018000002u);
  EXPECT_EQ(PageRef::of(5, 6).bits, 0x0000000600000006u);
}

TEST(Layout, BlockAndDetailLines) {
  EXPECT_EQ(sizeof(BlockLine), 64u);
  EXPECT_PLACE(BlockLine, word, 0);
  EXPECT_PLACE(BlockLine, digest_lo, 8);
  EXPECT_PLACE(BlockLine, digest_hi, 16);
  EXPECT_PLACE(BlockLine, length, 24);
  EXPECT_PLACE(BlockLine, parent, 32);
  EXPECT_PLACE(BlockLine, shape, 40);
  EXPECT_PLACE(BlockLine, chain, 48);
  EXPECT_PLACE(BlockLine, expires_ms, 56);
  EXPECT_EQ(sizeof(DetailLine), 64u);
  EXPECT_PLACE(DetailLine, key, 0);
  EXPECT_PLACE(DetailLine, tenant, 8);
  EXPECT_PLACE(DetailLine, kind, 16);
  EXPECT_PLACE(DetailLine, checksum, 24);
  EXPECT_PLACE(DetailLine, stored_ms, 32);
  EXPECT_PLACE(DetailLine, owner, 40);
}

TEST(Layout, Buckets) {
  EXPECT_EQ(sizeof(Bucket), 128u);
  EXPECT_PLACE(Bucket, tags.header, 0);
  EXPECT_PLACE(Bucket, tags.tag, 8);
  EXPECT_PLACE(Bucket, locations.overflow, 64);
  EXPECT_PLACE(Bucket, locations.location, 72);
}

TEST(Layout, WhatMarudWrites) {
  EXPECT_EQ(sizeof(HostRecord), 256u);
  EXPECT_PLACE(HostRecord, boot_id_lo, 0);
  EXPECT_PLACE(HostRecord, epoch, 16);
  EXPECT_PLACE(HostRecord, heartbeat_ms, 24);
  EXPECT_PLACE(HostRecord, process, 32);
  EXPECT_PLACE(HostRecord, clean, 40);
  EXPECT_PLACE(HostRecord, policy, 48);
  EXPECT_PLACE(HostRecord, machine_id, 56);
  EXPECT_PLACE(HostRecord, claim, 64);
  EXPECT_PLACE(HostRecord, wanted, 72);
  EXPECT_PLACE(HostRecord, name, 128);
  EXPECT_PLACE(HostRecord, serves, 192);
  EXPECT_EQ(uint32_t(HostState::kFree), 0u);
  EXPECT_EQ(uint32_t(HostState::kLive), 1u);
  EXPECT_EQ(uint32_t(HostState::kSuspect), 2u);
  EXPECT_EQ(uint32_t(HostState::kDead), 3u);
  EXPECT_EQ(uint32_t(HostState::kAttaching), 4u);
  EXPECT_EQ(sizeof(RegionRecord), 32u);
  EXPECT_PLACE(RegionRecord, word, 0);
  EXPECT_EQ(sizeof(LaneBitmap), 512u);
  EXPECT_EQ(sizeof(LaneIdentity), 64u);
  EXPECT_EQ(kLaneHasLock, 0x100u);
  EXPECT_EQ(lane_lock(3, 7), 0x4000'0000'0003'0007u);
  EXPECT_PLACE(LaneIdentity, state, 0);
  EXPECT_PLACE(LaneIdentity, process, 8);
  EXPECT_PLACE(LaneIdentity, start_time, 16);
  EXPECT_PLACE(LaneIdentity, boot_id_lo, 24);
  EXPECT_PLACE(LaneIdentity, credentials, 40);
  EXPECT_PLACE(LaneIdentity, attached_ms, 48);
  EXPECT_PLACE(LaneIdentity, pid_namespace, 56);
  EXPECT_EQ(sizeof(PolicyEntry), 32u);
  EXPECT_PLACE(PolicyEntry, newer, 0);
  EXPECT_PLACE(PolicyEntry, older, 4);
  EXPECT_PLACE(PolicyEntry, last_use_ms, 8);
  EXPECT_PLACE(PolicyEntry, generation, 16);
  EXPECT_PLACE(PolicyEntry, list, 20);
  EXPECT_PLACE(PolicyEntry, word, 24);
  EXPECT_EQ(sizeof(TenantRecord), 128u);
  EXPECT_PLACE(TenantRecord, id, 0);
  EXPECT_PLACE(TenantRecord, soft_bytes, 8);
  EXPECT_PLACE(TenantRecord, hard_bytes, 16);
  EXPECT_PLACE(TenantRecord, used_bytes, 24);
  EXPECT_PLACE(TenantRecord, balance, 32);
  EXPECT_PLACE(TenantRecord, flags, 40);
  EXPECT_PLACE(TenantRecord, name_bytes, 56);
  EXPECT_PLACE(TenantRecord, name, 64);
  EXPECT_EQ(sizeof(TenantRules), 64u);
  EXPECT_PLACE(TenantRules, flags, 0);
  EXPECT_PLACE(TenantRules, soft_bytes, 8);
  EXPECT_PLACE(TenantRules, hard_bytes, 16);
  EXPECT_EQ(kRulesLimited, 1u);
  EXPECT_EQ(kRulesUnlistedNeedCredit, 2u);
  EXPECT_EQ(kRulesMissed, 4u);
  EXPECT_EQ(kTenantNeedsCredit, 1u);
  EXPECT_EQ(kTenantListed, 2u);
}

TEST(Layout, Lanes) {
  EXPECT_EQ(sizeof(LaneHeader), 384u);
  EXPECT_PLACE(LaneHeader, touch_count, 0);
  EXPECT_PLACE(LaneHeader, pin_overflow, 8);
  EXPECT_PLACE(LaneHeader, frees, 16);
  EXPECT_PLACE(LaneHeader, accounts, 24);
  EXPECT_PLACE(LaneHeader, touches_read, 32);
  EXPECT_PLACE(LaneHeader, parent_intent, 64);
  EXPECT_PLACE(LaneHeader, own_counters, 128);
  EXPECT_PLACE(LaneHeader, counters, 256);
  EXPECT_EQ(sizeof(LaneAccount), 32u);
  EXPECT_PLACE(LaneAccount, tenant, 0);
  EXPECT_PLACE(LaneAccount, in_flight, 8);
  EXPECT_PLACE(LaneAccount, charged, 16);
  EXPECT_PLACE(LaneAccount, returned, 24);
  EXPECT_EQ(account_slots(1), 4u);
  EXPECT_EQ(account_slots(3), 4u);
  EXPECT_EQ(account_slots(4), 8u);
  EXPECT_EQ(account_slots(65536), 4096u);
}

TEST(Layout, Label) {
  EXPECT_EQ(kDataLabelMagic, 0x315441445552414du);
  EXPECT_EQ(kDataLabelRoom, 2097152u);
  EXPECT_EQ(kDataLabelHosts, 0x54534f485552414du);
  EXPECT_EQ(sizeof(DataLabel), 56u);
  EXPECT_PLACE(DataLabel, magic, 0);
  EXPECT_PLACE(DataLabel, uuid, 8);
  EXPECT_PLACE(DataLabel, data_bytes, 24);
  EXPECT_PLACE(DataLabel, pages_offset, 32);
  EXPECT_PLACE(DataLabel, checksum, 40);
  EXPECT_PLACE(DataLabel, hosts, 48);
}

// Sizes that follow from the parameters, for a pool of 64 GiB with the defaults.
TEST(Layout, APoolOf64GiB) {
  FormatWishes wishes;
  wishes.pool_bytes = 64ull << 30;
  Parameters p;
  Layout layout;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  ASSERT_EQ(plan_layout(p, &layout), nullptr);
  EXPECT_EQ(p.page_bytes, 2097152u);
  EXPECT_EQ(p.region_pages, 128u);
  EXPECT_EQ(p.pages, 32640u);
  EXPECT_EQ(p.lanes, 256u);
  EXPECT_EQ(p.pins_max, 16384u);
  EXPECT_EQ(p.tenants, 256u);
  EXPECT_EQ(layout.account_slots, 512u);
  EXPECT_EQ(p.key_extents, 32640u);
  EXPECT_EQ(layout.lane_bytes, 344448u);
  EXPECT_EQ(layout.buckets, 9326u);
  EXPECT_EQ(layout.overflow_buckets, 1554u);
  EXPECT_EQ(layout.control_bytes, 249561088u);
}

// A small pool keeps most of itself for pages.
TEST(Layout, APoolOf128MiB) {
  FormatWishes wishes;
  wishes.pool_bytes = 128ull << 20;
  Parameters p;
  Layout layout;
  ASSERT_EQ(choose_parameters(wishes, &p), nullptr);
  ASSERT_EQ(plan_layout(p, &layout), nullptr);
  EXPECT_EQ(p.page_bytes, 65536u);
  EXPECT_EQ(p.lanes, 64u);
  EXPECT_EQ(p.pins_max, 2048u);
  EXPECT_EQ(p.touch_entries, 4096u);
  EXPECT_EQ(layout.lane_bytes, 72064u);
}

TEST(Layout, SecretWords) {
  EXPECT_EQ(kSecretAdd0, 0);
  EXPECT_EQ(kSecretMultiply0, 3);
  EXPECT_EQ(kSecretChainLo, 6);
  EXPECT_EQ(kSecretChainHi, 7);
  EXPECT_EQ(kSecretChainDepth, 8);
  EXPECT_EQ(kSecretTweakBytes, 9);
  EXPECT_EQ(kSecretTweak128, 10);
  EXPECT_EQ(kSecretTweak256, 11);
  EXPECT_EQ(kSecretSip0, 12);
  EXPECT_EQ(kSecretSip1, 13);
  EXPECT_EQ(kSecretTenant0, 14);
  EXPECT_EQ(kSecretTenant1, 15);
}

}  // namespace
}  // namespace maru::shm
