// Who attaches to a pool in two pieces to read only gets a descriptor of its pages with which the kernel lets nobody write; and
// the two pieces of such a pool come back together when marud does.
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/roles.h"
#include "tests/support/descriptor_store.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::test {
namespace {

constexpr uid_t kReader = 54'321;
constexpr size_t kOsPage = 4096;

// The descriptors of this process that are the pages of the pool "default".
std::vector<int> descriptors_of_pages(int mode) {
  std::vector<int> found;
  for (int fd = 3; fd < 200; ++fd) {  // beyond are those that a service manager of the test keeps
    char target[100] = {};
    if (::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof(target) - 1) <= 0) continue;
    const std::string name = target;
    if (name.find("marud:default:pages") == std::string::npos && !name.ends_with("/default.pool")) continue;
    if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == mode) found.push_back(fd);
  }
  return found;
}

// The errno of mapping the first page of it to write, or 0.
int errno_of_mapping_writable(int fd) {
  void* address = ::mmap(nullptr, kOsPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno;
  ::munmap(address, kOsPage);
  return 0;
}

// The errno of making a mapping writable that was made to read, or 0.
int errno_of_making_writable(int fd) {
  void* address = ::mmap(nullptr, kOsPage, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return -1;
  const int code = ::mprotect(address, kOsPage, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
  ::munmap(address, kOsPage);
  return code;
}

class Readers : public ::testing::TestWithParam<bool> {
 protected:
  static PoolWish pool() {
    PoolWish pool;
    pool.in_two_files = GetParam();
    return pool;
  }
};

TEST_P(Readers, CannotWriteThePages) {
  MarudProcess marud({pool()});
  TestClient writer(marud.socket_path());
  ASSERT_EQ(writer.store("a", "first"), 0);
  TestClient reader(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  EXPECT_EQ(reader.text("a"), "first");
  EXPECT_EQ(reader.store("b", "second"), -EROFS);
  EXPECT_EQ(reader.remove("a"), -EROFS);
  const maru_key key = key_of("a");
  int32_t result = 7;
  EXPECT_EQ(maru_delete_batch(reader, &key, 1, &result), -EROFS);
  EXPECT_EQ(result, 7);
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc(reader, 100, &buffer), -EROFS);
  // This process has both clients.
  const auto readable = descriptors_of_pages(O_RDONLY), writable = descriptors_of_pages(O_RDWR);
  ASSERT_EQ(readable.size(), 1u);
  ASSERT_EQ(writable.size(), 1u);
  EXPECT_EQ(errno_of_mapping_writable(readable[0]), EACCES);
  EXPECT_EQ(errno_of_making_writable(readable[0]), EACCES);
  EXPECT_EQ(errno_of_mapping_writable(writable[0]), 0);
  EXPECT_EQ(writer.store("b", "second"), 0);
  EXPECT_EQ(reader.text("b"), "second");
}

TEST_P(Readers, OfAnotherUserCannotOpenThePagesAnewToWrite) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  PoolWish with_readers = pool();
  with_readers.more = "readers = [" + std::to_string(kReader) + "]\n";
  MarudProcess marud({with_readers});
  marud.directory().open_to_everybody();
  TestClient writer(marud.socket_path());
  ASSERT_EQ(writer.store("a", "first"), 0);
  ChildProcess reader({own_program(), "--role", "read-as", marud.socket_path(), std::to_string(kReader)});
  const auto ended = reader.wait();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->text(), "ended with status 0") << "the line of run_read_as() that failed";
  EXPECT_EQ(writer.store("b", "second"), 0);
}

INSTANTIATE_TEST_SUITE_P(Of, Readers, ::testing::Values(false, true),
                         [](const auto& which) { return which.param ? "PoolInTwoFiles" : "PoolInMemory"; });

// Nobody but a client that cannot write the pages has them.
TEST(ReadersRestart, AReaderHandsBackWhatMarudMayWriteAgain) {
  MarudProcess marud;
  TestClient reader(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  {
    TestClient writer(marud.socket_path());
    ASSERT_EQ(writer.store("a", "first"), 0);
  }
  const auto uuid = marud.pool_status().at("uuid");
  marud.kill();
  EXPECT_EQ(reader.text("a"), "first");
  marud.start();
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("condition") == "serving"; }));
  EXPECT_EQ(marud.pool_status().at("uuid"), uuid);
  TestClient writer(marud.socket_path());
  EXPECT_EQ(writer.text("a"), "first");
  EXPECT_EQ(writer.store("b", "second"), 0);
  EXPECT_EQ(reader.text("b"), "second");
  EXPECT_TRUE(marud.ask({{"command", "check"}}).at("violations").empty());
}

// Of the two files none is anybody's but marud's, which finds both by their names.
TEST(ReadersRestart, TwoFilesAreFoundAgainWithClientsAndWithout) {
  PoolWish pool;
  pool.in_two_files = true;
  MarudProcess marud({pool});
  const auto uuid = marud.pool_status().at("uuid");
  TestClient reader(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  TestClient writer(marud.socket_path());
  ASSERT_EQ(writer.store("a", "first"), 0);
  marud.kill();
  EXPECT_EQ(reader.text("a"), "first");
  marud.start();
  EXPECT_EQ(marud.pool_status().at("uuid"), uuid);
  EXPECT_EQ(writer.store("b", "second"), 0);
  EXPECT_EQ(reader.text("b"), "second");
  writer.detach();
  reader.detach();
  marud.stop();
  marud.start();
  TestClient late(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  EXPECT_EQ(late.text("b"), "second");
  EXPECT_TRUE(marud.ask({{"command", "check"}, {"quiesce", true}}).at("violations").empty());
  // Without one of them there is no pool, and none is made in its place.
  for (const std::string& one : {marud.pool_file("default"), marud.control_file("default")}) {
    marud.stop();
    std::filesystem::rename(one, one + ".away");
    EXPECT_THROW(marud.start(), std::runtime_error);
    EXPECT_TRUE(marud.has_logged("found it without \"" + one + "\""));
    EXPECT_FALSE(std::filesystem::exists(one));
    std::filesystem::rename(one + ".away", one);
    marud.start();
  }
  EXPECT_EQ(marud.pool_status().at("uuid"), uuid);
}

// Memory as the pages of a pool are, of another user, as if that one had made it.
FileDescriptor pages_of_another_user(const struct stat& like, int seals) {
  FileDescriptor made(::memfd_create("marud:default:pages", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(made.get(), like.st_size), 0);
  EXPECT_EQ(::fcntl(made.get(), F_ADD_SEALS, seals), 0);
  EXPECT_EQ(::fchown(made.get(), kReader, gid_t(-1)), 0);
  return made;
}

// The kernel gave the number of the pool's pages, which are gone, to memory of somebody else.
TEST(ReadersRestart, PagesThatAnotherUserMadeAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give memory away";
  MarudProcess marud({PoolWish{}}, 100);
  const auto attach = [&](wire::AttachRequest request, int pages, int control) {
    auto socket = wire::connect_to(marud.socket_path());
    std::memcpy(request.pool, "default", 7);
    const auto packet = wire::encode(wire::Type::kAttach, 1, 0, wire::bytes_of(request));
    EXPECT_TRUE(socket && wire::send_packet(socket->get(), packet, pages, far_too_long_ms(), control));
    auto reply = wire::receive_packet(socket->get(), far_too_long_ms());
    EXPECT_TRUE(reply);
    return reply ? std::move(*reply) : wire::Packet();
  };
  const wire::Packet held = attach({}, -1, -1);
  ASSERT_TRUE(held.fd.is_open() && held.second.is_open());
  const auto known = wire::read_exactly<wire::AttachReply>(wire::payload_of(held.bytes));
  ASSERT_TRUE(known);
  struct stat pages = {};
  ASSERT_EQ(::fstat(held.fd.get(), &pages), 0);
  const FileDescriptor foreign = pages_of_another_user(pages, ::fcntl(held.fd.get(), F_GET_SEALS));
  ASSERT_EQ(::fstat(foreign.get(), &pages), 0);
  ASSERT_EQ(pages.st_uid, kReader);
  marud.kill();
  const std::string state = marud.directory().file("state/pool-default.state");
  nlohmann::json record = nlohmann::json::parse(std::ifstream(state));
  record["pages"]["dev"] = pages.st_dev;
  record["pages"]["inode"] = pages.st_ino;
  std::ofstream(state) << record.dump();
  marud.start();
  wire::AttachRequest back = {};
  back.flags = wire::kAttachHandsBack;
  std::memcpy(back.uuid, known->uuid, sizeof(back.uuid));
  const auto reply = attach(back, foreign.get(), held.second.get());
  const auto header = wire::decode_reply(reply.bytes);
  EXPECT_TRUE(header && header->status == -ESTALE) << "the pool began anew";
  EXPECT_TRUE(marud.has_logged("accept memory that another user made: found user " + std::to_string(kReader)));
}

// As systemd keeps them, over a crash with no client left, twice.
TEST(ReadersRestart, TheDescriptorStoreKeepsBothPieces) {
  DescriptorStore store;
  MarudProcess marud({PoolWish{}}, 0);
  {
    TestClient writer(marud.socket_path());
    ASSERT_EQ(writer.store("a", "first"), 0);
  }
  const auto uuid = marud.pool_status().at("uuid");
  for (int i = 0; i < 2; ++i) {
    store.read_messages();
    EXPECT_EQ(store.names(), (std::vector<std::string>{"pages-default", "pool-default"}));
    marud.kill();
    marud.start();
    EXPECT_EQ(marud.pool_status().at("condition"), "serving");
    EXPECT_EQ(marud.pool_status().at("uuid"), uuid);
    TestClient writer(marud.socket_path());
    EXPECT_EQ(writer.text("a"), "first");
    EXPECT_EQ(writer.store("b" + std::to_string(i), "second"), 0);
    TestClient reader(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
    EXPECT_EQ(reader.text("b" + std::to_string(i)), "second");
    EXPECT_EQ(descriptors_of_pages(O_RDONLY).size(), 1u);
  }
  // Nobody tells marud whether it is restarted or stopped.
  {
    TestClient holder(marud.socket_path());
    marud.stop();
    EXPECT_TRUE(marud.has_logged("stays with its clients and, over a restart, with the service manager"))
        << marud.log();
    store.read_messages();
    marud.start();
  }
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; }));
  marud.stop();
  EXPECT_TRUE(marud.has_logged("a restart gets it back; a stop gives it up")) << marud.log();
  store.read_messages();
  marud.start();
  // Half of a pool is none.
  store.read_messages();
  store.lose("pages-default");
  marud.kill();
  marud.start();
  EXPECT_TRUE(marud.has_logged("found one descriptor, expected two")) << marud.log();
  TestClient other(marud.socket_path());
  EXPECT_NE(marud.pool_status().at("uuid"), uuid);
}

}  // namespace

// --role read-as SOCKET USER: attaches to read only; ends with 0, or the line of what is not as it should be.
int run_read_as(int argument_count, char** arguments) {
  if (argument_count != 2) return 2;
  const auto user = uid_t(std::strtoul(arguments[1], nullptr, 10));
  if (::setgid(user) != 0 || ::setuid(user) != 0) return __LINE__;
  TestClient reader(arguments[0], "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  if (reader.text("a") != "first") return __LINE__;
  const auto readable = descriptors_of_pages(O_RDONLY);
  if (readable.size() != 1 || !descriptors_of_pages(O_RDWR).empty()) return __LINE__;
  if (errno_of_mapping_writable(readable[0]) != EACCES) return __LINE__;
  if (::open(("/proc/self/fd/" + std::to_string(readable[0])).c_str(), O_RDWR | O_CLOEXEC) >= 0) return __LINE__;
  if (errno != EACCES) return __LINE__;
  return 0;
}

}  // namespace maru::test
