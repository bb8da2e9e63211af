// The key and the content of a block. Both follow from the ids of its prefix. So each client can tell the bytes that any client
// must have written, and a wrong page, a wrong offset and a torn write all show.
#pragma once

#include "daemon/tools/trace/trace.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace maru::replay {

using BlockDigest = std::array<uint64_t, 2>;  // a 128-bit ready-made digest

// The digests of a request's prefixes: entry i stands for hash_ids[0..i]. Each digest also depends on the length of a block, so
// a replay with another length finds none of these in a pool.
void prefix_digests(const trace::Request& request, uint64_t payload_bytes, std::vector<BlockDigest>& ret_digests);

// Fills a block with the bytes that belong to its digest.
void fill_block(const BlockDigest& digest, std::span<std::byte> block);

// How many bytes differ from the bytes that fill_block writes. Reads every byte.
uint64_t count_wrong_bytes(const BlockDigest& digest, std::span<const std::byte> block);

}  // namespace maru::replay
