// Pools in files on a disk, with real processes: what a loss of power leaves of them.
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include "libmaru/shm/region/control_region.h"

#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <string>

namespace maru::test {
namespace {

void put(const std::string& path, uint64_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(std::streamoff(at));
  file << bytes;
}

std::string all_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// As if the power had been lost while marud worked, with the processes of that boot.
void pretend_other_boot(const std::string& path) {
  const std::string all = all_of(path);
  format::Header header;
  std::memcpy(&header, all.data(), sizeof(header));
  const uint64_t hosts_at = header.sections[format::kSectionHosts].offset;
  put(path, hosts_at + offsetof(format::HostRecord, boot_id_lo), std::string(8, '\1'));
  put(path, hosts_at + offsetof(format::HostRecord, clean), std::string(8, '\0'));
  for (uint32_t lane = 1; lane < header.parameters.lanes; ++lane) {
    const uint64_t at = header.sections[format::kSectionLaneIdentities].offset + sizeof(format::LaneBitmap) +
                        lane * sizeof(format::LaneIdentity) + offsetof(format::LaneIdentity, boot_id_lo);
    put(path, at, std::string(8, '\1'));
  }
}

class FilePower : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Files, FilePower, ::testing::Values(false, true));

TEST_P(FilePower, WhatIsDamagedIsDroppedAndTheRestStays) {
  PoolWish wish;
  wish.checksums = true;
  wish.in_file = !GetParam();
  wish.in_two_files = GetParam();
  MarudProcess marud({wish});
  const std::string pages = marud.pool_file("default");
  const std::string control = GetParam() ? marud.control_file("default") : pages;
  const auto client = [&] {
    return std::make_unique<TestClient>(marud.socket_path(), "default", far_too_long_ms(), 0u);
  };
  const auto writer = client();
  EXPECT_EQ(writer->store("good", "good bytes"), 0);
  EXPECT_EQ(writer->store("bad", "these bytes never reached the disk"), 0);
  EXPECT_EQ(writer->store("child of bad", "child bytes", "bad"), 0);
  for (const std::string text : {"described well", "described ill"}) {
    const maru_metadata metadata = {text.data(), uint32_t(text.size()), 0};
    maru_store_options options{};
    options.size = sizeof(options);
    options.metadata = &metadata;
    const maru_key key = key_of(text);
    EXPECT_EQ(maru_store_copy(*writer, &key, "payload", 7, &options, nullptr), 0);
  }
  marud.kill();
  const size_t at = all_of(pages).find("these bytes never reached");
  ASSERT_NE(at, std::string::npos);
  put(pages, at, std::string(16, '\0'));
  const std::string all_pages = all_of(pages);
  size_t metadata_at =
      all_pages.find("described ill");  // a key lies among the bookkeeping, which may be in this file, too
  while (metadata_at % 4096 != 64) metadata_at = all_pages.find("described ill", metadata_at + 1);
  put(pages, metadata_at, "D");
  pretend_other_boot(control);
  marud.start();
  EXPECT_TRUE(marud.has_logged("of 5 blocks with"));
  EXPECT_TRUE(marud.has_logged("3 were dropped"));
  const auto reader = client();
  EXPECT_EQ(reader->text("good"), "good bytes");
  EXPECT_EQ(reader->text("described well"), "payload");
  EXPECT_EQ(reader->text("described ill"), std::nullopt);
  EXPECT_EQ(reader->text("bad"), std::nullopt);
  EXPECT_EQ(reader->text("child of bad"), std::nullopt);
  EXPECT_EQ(marud.ask({{"command", "check"}, {"quiesce", true}}).at("found"), 0u);
}

}  // namespace
}  // namespace maru::test
