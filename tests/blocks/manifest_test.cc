// Manifests: their bytes, and the one of a namespace in a pool.
#include "tests/blocks/manifest_fixture.h"
#include "tests/blocks/partner.h"

namespace maru::test {
namespace {

TEST(ManifestBytes, HaveOneForm) {
  const Manifest manifest = manifest_of("llama");
  const std::vector<std::byte> bytes = encoded(manifest);
  EXPECT_EQ(bytes.size() % 8, 0u);
  const Answer<Manifest> decoded = Manifest::decode(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.reason();
  EXPECT_EQ(encoded(*decoded), bytes);
  EXPECT_EQ(decoded->model, "llama");
  EXPECT_EQ(decoded->revision, manifest.revision);
  EXPECT_EQ(decoded->tensor_rank, 1u);
  EXPECT_EQ(decoded->layout.head_dim, 128u);

  Manifest larger_cache = manifest, aligned = manifest;
  larger_cache.layout.blocks = 5;
  aligned.layout.alignment = 1;  // what 0 stands for
  EXPECT_EQ(encoded(larger_cache), bytes);
  EXPECT_EQ(encoded(aligned), bytes);
  EXPECT_TRUE(larger_cache.expect(manifest).ok());
}

// python/tests/test_manifest.py has the same numbers: both languages write the same bytes.
TEST(ManifestBytes, AreTheSameInEveryLanguage) {
  const std::vector<std::byte> bytes = encoded(manifest_of("llama"));
  EXPECT_EQ(bytes.size(), 272u);
  EXPECT_EQ(to_text(*manifest_of("llama").fingerprint()), "0c3e40339bc258672cef966af2b5a1ee");
}

TEST(ManifestBytes, CutAnywhereAreRefused) {
  const std::vector<std::byte> bytes = encoded(manifest_of("llama"));
  for (size_t n = 0; n < bytes.size(); ++n) {
    // A copy of this size, so that a read behind it is one behind the memory.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + std::ptrdiff_t(n));
    expect_refusal(Manifest::decode(cut), EBADMSG, "length: found " + std::to_string(n) + " bytes");
  }
  std::vector<std::byte> longer = bytes;
  longer.resize(bytes.size() + 8);
  expect_refusal(Manifest::decode(longer), EBADMSG, "length");
}

TEST(ManifestBytes, WithOneBitFlippedAreRefused) {
  std::vector<std::byte> bytes = encoded(manifest_of("llama"));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte flip{uint8_t(1 << bit % 8)};
    bytes[bit / 8] ^= flip;
    EXPECT_FALSE(Manifest::decode(bytes).ok()) << "bit " << bit;
    bytes[bit / 8] ^= flip;
  }
  EXPECT_TRUE(Manifest::decode(bytes).ok());
}

TEST(ManifestBytes, OfAnotherVersionAreRefusedByVersion) {
  const std::vector<std::byte> later = forged(encoded(manifest_of("llama")), 8, uint32_t(2));
  expect_refusal(Manifest::decode(later), EPROTONOSUPPORT, "version: found 2, expected 1");
  // Also where that version has other lengths.
  expect_refusal(Manifest::decode(std::span(later).first(20)), EPROTONOSUPPORT, "version: found 2, expected 1");
}

TEST(ManifestBytes, WithARightChecksumAreStillChecked) {
  const std::vector<std::byte> bytes = encoded(manifest_of("llama"));
  expect_refusal(Manifest::decode(forged(bytes, 0, 'X')), EBADMSG, "do not begin with \"MARUMANI\"");
  expect_refusal(Manifest::decode(forged(bytes, 148, uint32_t(4))), EINVAL, "tensor_rank: found 4, expected less than");
  expect_refusal(Manifest::decode(forged(bytes, 160, uint32_t(0))), EINVAL, "page_size: found 0");
  expect_refusal(Manifest::decode(forged(bytes, 164, uint32_t(1))), EBADMSG, "padding");
  expect_refusal(Manifest::decode(forged(bytes, 172, '\x07')), EINVAL, "framework: found the byte 0x07");
  expect_refusal(Manifest::decode(forged(bytes, 168, UINT32_MAX)), EBADMSG,
                 "framework: found 92 bytes, expected 4294967295");
  expect_refusal(Manifest::decode(forged(bytes, 16 + 24, uint32_t(9))), EBADMSG, "layout: ");
}

TEST(ManifestBytes, FieldsOutOfRangeAreRefusedByName) {
  Manifest manifest = manifest_of("");
  expect_refusal(manifest.encode(), EINVAL, "model: found 0 bytes, expected 1 to 1024");
  manifest.model = std::string(1025, 'm');
  expect_refusal(manifest.encode(), EINVAL, "model: found 1025 bytes");
  manifest.model = "mod\xC3\xA8le";
  expect_refusal(manifest.encode(), EINVAL, "model: found the byte 0xc3, expected printable ASCII");
  manifest.model = std::string(1024, 'm');
  manifest.lora = std::string(1024, 'l');
  EXPECT_TRUE(Manifest::decode(encoded(manifest)).ok());
  manifest.layout.layers = 0;
  expect_refusal(manifest.encode(), EINVAL, "layout: ");
}

TEST(ManifestBytes, DifferenceNamesTheFieldAndBothValues) {
  const Manifest expected = manifest_of("llama");
  const auto difference = [&](auto change) {
    Manifest found = expected;
    change(found);
    EXPECT_NE(to_text(*found.fingerprint()), to_text(*expected.fingerprint()));
    EXPECT_NE(*found.salt_hash(), *expected.salt_hash());
    const Answer<void> same = found.expect(expected);
    EXPECT_EQ(same.error(), EEXIST);
    return std::string(same.reason());
  };
  EXPECT_EQ(difference([](Manifest& m) { m.framework = "sglang"; }), "framework: found \"sglang\", expected \"vllm\"");
  EXPECT_EQ(difference([](Manifest& m) { m.framework_version = "1"; }),
            "framework_version: found \"1\", expected \"0.11.0\"");
  EXPECT_EQ(difference([](Manifest& m) { m.model = "qwen"; }), "model: found \"qwen\", expected \"llama\"");
  EXPECT_EQ(difference([](Manifest& m) { m.revision = "8c22764a7e3675c50d4c7c9a4edb474456022b17"; }),
            "revision: found \"8c22764a7e3675c50d4c7c9a4edb474456022b17\", expected "
            "\"8c22764a7e3675c50d4c7c9a4edb474456022b16\"");
  EXPECT_EQ(difference([](Manifest& m) { m.dtype = ""; }), "dtype: found \"\", expected \"bfloat16\"");
  EXPECT_EQ(difference([](Manifest& m) { m.quantisation = "int8"; }), "quantisation: found \"int8\", expected \"fp8\"");
  EXPECT_EQ(difference([](Manifest& m) { m.lora = "poems"; }), "lora: found \"poems\", expected \"\"");
  EXPECT_EQ(difference([](Manifest& m) { m.tensor_ranks = 8; }), "tensor_ranks: found 8, expected 4");
  EXPECT_EQ(difference([](Manifest& m) { m.tensor_rank = 2; }), "tensor_rank: found 2, expected 1");
  EXPECT_EQ(difference([](Manifest& m) { m.pipeline_ranks = 2; }), "pipeline_ranks: found 2, expected 1");
  EXPECT_EQ(difference([](Manifest& m) { m.page_size = 32; }), "page_size: found 32, expected 4");
  EXPECT_EQ(difference([](Manifest& m) { m.layout.order = MARU_LAYOUT_HND; }), "layout.order: found 2, expected 1");
  EXPECT_EQ(difference([](Manifest& m) { m.layout.head_dim = 64; }), "layout.head_dim: found 64, expected 128");
  EXPECT_EQ(difference([](Manifest& m) { m.layout.heads_total = 8; }), "layout.heads_total: found 8, expected 2");
}

// -- in a pool -------------------------------------------------------------------------------------------------------

using Namespace = Blocks;

TEST_F(Namespace, FirstManifestStaysAndOthersAreRefused) {
  Client& client = pool_.client();
  {
    const auto first = AttachedManifest::attach(client, "llama-pool", manifest_of("llama"));
    ASSERT_TRUE(first.ok()) << first.reason();
    EXPECT_EQ(map_.count_pins(), 2u);
    const auto same = AttachedManifest::attach(client, "llama-pool", manifest_of("llama"));
    ASSERT_TRUE(same.ok()) << same.reason();
    EXPECT_EQ(to_text(same->fingerprint()), to_text(first->fingerprint()));
    EXPECT_EQ(pool_.status()->active + pool_.status()->inactive, 2u) << "stored once";
    expect_refusal(AttachedManifest::attach(client, "llama-pool", manifest_of("qwen")), EEXIST,
                   "model: found \"llama\", expected \"qwen\"");
    EXPECT_EQ(pool_.status()->active + pool_.status()->inactive, 2u) << "what is refused stores nothing";
    EXPECT_TRUE(AttachedManifest::attach(client, "other-pool", manifest_of("qwen")).ok());
  }
  EXPECT_EQ(map_.count_pins(), 0u);
  EXPECT_EQ(AttachedManifest::find(client, "llama-pool")->model, "llama");
  EXPECT_EQ(AttachedManifest::find(client, *manifest_of("qwen").fingerprint())->model, "qwen");
  expect_refusal(AttachedManifest::find(client, "no-pool"), ENOENT, "maru.namespace.no-pool");
  expect_refusal(AttachedManifest::attach(client, "", manifest_of("qwen")), EINVAL, "namespace: found 0 bytes");
}

TEST_F(Namespace, SecondProcessIsRefusedWithTheField) {
  const auto first = AttachedManifest::attach(pool_.client(), "shared", manifest_of("llama"));
  ASSERT_TRUE(first.ok());
  Partner other("attach", marud_.socket_path(), 7, 1);
  EXPECT_EQ(other.line(), "ready");
  other.go();
  EXPECT_EQ(other.line(), "model: found \"llama\", expected \"model-7\"");
  EXPECT_TRUE(other.ends_well());
}

TEST_F(Namespace, OfManyAtOnceOneManifestWins) {
  constexpr uint32_t kProcesses = 4;  // and two clients of the test: lanes
  std::vector<std::unique_ptr<Partner>> partners;
  for (uint32_t i = 0; i < kProcesses; ++i)
    partners.push_back(std::make_unique<Partner>("attach", marud_.socket_path(), i % 2, 1));
  for (auto& partner : partners) ASSERT_EQ(partner->line(), "ready");
  for (auto& partner : partners) partner->go();
  std::vector<std::string> lines;
  for (auto& partner : partners) lines.push_back(partner->line());
  const Answer<Manifest> winner = AttachedManifest::find(pool_.client(), "shared");
  ASSERT_TRUE(winner.ok()) << winner.reason();
  for (uint32_t i = 0; i < kProcesses; ++i) {
    const std::string model = "model-" + std::to_string(i % 2);
    EXPECT_EQ(lines[i], model == winner->model ? "attached"
                                               : "model: found \"" + winner->model + "\", expected \"" + model + "\"");
    EXPECT_TRUE(partners[i]->ends_well());
  }
  // Each one that lost has taken its manifest out, or another loser held it at that moment.
  EXPECT_LE(pool_.status()->active + pool_.status()->inactive, 3u);
}

TEST_F(Namespace, WhatIsNoManifestInThePoolIsRefused) {
  Client& client = pool_.client();
  const std::string wrong(48, 'x');
  ASSERT_TRUE(client.store_copy(Key("maru.namespace.damaged"), std::as_bytes(std::span(wrong))).ok());
  expect_refusal(AttachedManifest::attach(client, "damaged", manifest_of("llama")), EBADMSG, "\"MARUNAME\"");
  const std::string key = "maru.manifest." + to_text(*manifest_of("llama").fingerprint());
  const std::vector<std::byte> other = encoded(manifest_of("qwen"));
  ASSERT_TRUE(client.store_copy(Key(key), other).ok());
  expect_refusal(AttachedManifest::attach(client, "false-key", manifest_of("llama")), EBADMSG, "found other bytes");
  expect_refusal(AttachedManifest::find(client, *manifest_of("llama").fingerprint()), EBADMSG, "fingerprint: found");
  EXPECT_EQ(map_.count_pins(), 0u);
}

}  // namespace
}  // namespace maru::test
