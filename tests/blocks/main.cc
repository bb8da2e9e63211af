// The block suite: googletest, or another process of a test (--role ACTION SOCKET FIRST COUNT INPUT OUTPUT). That process says
// on a line what it found, waits for its input to end, and lets go.
#include "tests/blocks/block_fixture.h"

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

int play(const std::string& action, const std::string& socket, uint32_t first, size_t count) {
  const std::vector<uint32_t> tokens = tokens_from(first, count * kPageSize);
  const BlockPool pool = pool_of(socket);
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
