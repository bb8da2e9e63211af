// The block suite: googletest, or another process of a test (--role ACTION SOCKET FIRST COUNT INPUT OUTPUT). That process says
// on a line what it found, waits for its input to end, and lets go.
#include "maru/blocks/block_set.hpp"
#include "tests/blocks/block_fixture.h"
#include "tests/blocks/manifest_fixture.h"

#include <cstdio>
#include <unistd.h>

namespace maru::test {
namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}
void wait_for_end_of_input() {
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) continue;
}

// Registers COUNT blocks as a chain: how many are new, how many were there.
int register_chain(const BlockPool& pool, std::span<const uint32_t> tokens) {
  BlockList<CompleteBlock> chain = complete_chain(pool, tokens);
  say("ready");
  char byte;
  if (::read(STDIN_FILENO, &byte, 1) != 1) return 1;
  const RegisteredBlocks registered = pool.register_blocks(std::move(chain));
  if (!registered.ok()) return 1;
  size_t fresh = 0;
  for (const ImmutableBlock& block : registered.blocks) fresh += block.is_new();
  say(std::to_string(fresh) + " " + std::to_string(registered.blocks.size() - fresh));
  wait_for_end_of_input();
  return 0;
}

// Matches the chain and reads it: how many blocks, and how many have the right bytes.
int match_chain(const BlockPool& pool, std::span<const uint32_t> tokens) {
  const std::vector<BlockHash> hashes = hashes_of(tokens);
  const BlockOutcome<ImmutableBlocks> matched = pool.match_blocks(hashes);
  if (!matched.ok()) return 1;
  size_t right = 0;
  for (size_t i = 0; i < matched->size(); ++i) {
    const std::span<const std::byte> bytes = matched->bytes(i);
    const std::byte expected{uint8_t(tokens[i * kPageSize] & 0xFF)};
    right += std::count(bytes.begin(), bytes.end(), expected) == std::ptrdiff_t(kBlockBytes);
  }
  say(std::to_string(matched->size()) + " " + std::to_string(right));
  wait_for_end_of_input();
  return 0;
}

// Attaches with the model of a number: whether it may.
int attach_manifest(const BlockPool& pool, const Manifest& manifest) {
  say("ready");
  char byte;
  if (::read(STDIN_FILENO, &byte, 1) != 1) return 1;
  const Answer<AttachedManifest> attached = AttachedManifest::attach(pool.client(), "shared", manifest);
  say(attached.ok() ? "attached" : std::string(attached.reason()));
  wait_for_end_of_input();
  return 0;
}

bool read_all(void* to, size_t n) {
  for (size_t done = 0; done < n;) {
    const ssize_t got = ::read(STDIN_FILENO, static_cast<char*>(to) + done, n - done);
    if (got <= 0) return false;
    done += size_t(got);
  }
  return true;
}

// Imports each set of its input and keeps it, or says the fault; no bytes: lets all go.
int import_sets(const BlockPool& pool, const Manifest& manifest) {
  std::vector<ImportedBlocks> kept;
  uint64_t count;
  while (read_all(&count, sizeof(count))) {
    std::vector<std::byte> bytes(count);
    if (!read_all(bytes.data(), count)) return 1;
    if (count == 0) {
      kept.clear();
      say("released");
      continue;
    }
    ImportedBlocks imported = import_blocks(pool, manifest, bytes);
    if (!imported.ok()) {
      say(std::to_string(int(imported.error.fault)) + ": " + std::string(imported.error.message()));
      for (const size_t gone : imported.gone) say("gone: " + std::to_string(gone));
      continue;
    }
    size_t right = 0;
    for (const ImmutableBlock& block : imported.blocks)
      right +=
          block.bytes().size() == kBlockBytes &&
          std::count(block.bytes().begin(), block.bytes().end(), block.bytes()[0]) == std::ptrdiff_t(kBlockBytes) &&
          block.bytes()[0] != std::byte{0};
    say("0: " + std::to_string(imported.blocks.size()) + " blocks, " + std::to_string(right) + " right");
    kept.push_back(std::move(imported));
  }
  return 0;
}

int play(const std::string& action, const std::string& socket, uint32_t first, size_t count) {
  const std::vector<uint32_t> tokens = tokens_from(first, count * kPageSize);
  const BlockPool pool = pool_of(socket);
  const Manifest manifest = manifest_of("model-" + std::to_string(first));
  if (action == "attach") return attach_manifest(pool, manifest);
  if (action == "import") return import_sets(pool, manifest);
  return action == "register" ? register_chain(pool, tokens) : match_chain(pool, tokens);
}

}  // namespace
}  // namespace maru::test

int main(int count, char** arguments) {
  if (count == 8 && std::string(arguments[1]) == "--role") {
    // The descriptors of its pipes.
    if (::dup2(std::stoi(arguments[6]), STDIN_FILENO) < 0 || ::dup2(std::stoi(arguments[7]), STDOUT_FILENO) < 0)
      return 3;
    try {
      return maru::test::play(arguments[2], arguments[3], uint32_t(std::stoul(arguments[4])), std::stoul(arguments[5]));
    } catch (const std::exception& exception) {
      std::fprintf(stderr, "%s\n", exception.what());
      return 4;
    }
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
