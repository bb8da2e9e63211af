// What a block is called and what it holds: both follow from the ids of its prefix, so that every client can tell what any
// other one must have written, and a wrong page, a wrong offset and a torn write all show.
#pragma once

#include "daemon/tools/trace/trace.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace maru::replay {

using BlockDigest = std::array<uint64_t, 2>;  // a 128-bit ready-made digest

// The digests of a request's prefixes: entry i speaks of hash_ids[0..i], and all of them of how long a block is, so that a
// replay with another length finds none of these in a pool.
void prefix_digests(const trace::Request& request, uint64_t payload_bytes, std::vector<BlockDigest>& ret_digests);

// Fills a block with the bytes that belong to its digest.
void fill_block(const BlockDigest& digest, std::span<std::byte> block);

// How many bytes differ from what fill_block would have written. Reads every byte.
uint64_t count_wrong_bytes(const BlockDigest& digest, std::span<const std::byte> block);

}  // namespace maru::replay
