// The tokens whose keys and values a pool's block holds, in the block's metadata. Programs that store blocks write them, such
// as the connectors of engines. docs/events.md describes the form: a map in MessagePack that begins with the key "maru":
//
//   key           value
//   maru          1, the version of this form. It comes first, and tells this form from other metadata
//   block_size    tokens of one of the engine's blocks, from 1 to kBlockSizeMax
//   tokens        bytes: each token as 32 bits, least significant byte first; a multiple of block_size
//   hashes        bytes: the engine's 64-bit hash of each of its blocks, most significant byte first; may be absent
//   parent        the hash of the engine's block before the first block; absent: a prompt begins here, or the block's parent in
//                 the pool tells
//   lora          the name of the LoRA; absent: none
//   salt          the cache salt; absent: none
//   rank, ranks   which part of the engine's blocks this is (one for each rank of tensor and pipeline), and of how many, up to
//                 1024; absent: 0 and 1
//
// Other keys are ignored.
#pragma once

#include "daemon/eventd/blocks.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maru::eventd {

struct TokenMetadata {
  static constexpr uint32_t kBlockSizeMax = 4096;
  static constexpr size_t kTextMax = 1024;  // bytes of lora and salt

  uint32_t block_size = 0;
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> hashes;  // empty: they are to be computed
  std::optional<uint64_t> parent;
  std::string lora, salt;
  uint32_t rank = 0, ranks = 1;

  std::string encode() const;
  // Any bytes. Nothing: the metadata is of another kind. Errors: EBADMSG it begins as this does, and is cut or out of range.
  static Result<std::optional<TokenMetadata>> decode(std::string_view bytes);
};

}  // namespace maru::eventd
