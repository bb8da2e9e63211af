// Finds and pins many keys at once: as find_and_pin does for one key, with the misses of neighbouring keys overlapped.
//
// Keys are taken in groups. All bucket lines of a group are fetched before the first is compared, and all block lines before
// the first is looked at. All pin slots are written before one barrier, and all page words are looked at after it
// (PinTable::pin_batch). Keys that are not plain (a tag twice in a bucket, an overflow bucket, a block that moved meanwhile, an
// absent key) go through find_and_pin, one at a time. To fetch the buckets of the next group while this group is pinned was
// tried and is slower: its block lines then wait behind them.
//
// Cost: about two thirds of as many find_and_pin whose lines were fetched beforehand.
#pragma once

#include "libmaru/shm/blocks/block_store.h"

#include <cstdint>
#include <span>

namespace maru::shm {

// ret_found[i] as find_and_pin(digests[i]) would have it: kFound with a pin, or kAbsent. False when the lane has no pin slot
// left for one of them: then nothing is held. Threads and deaths as in pin.h.
bool find_and_pin_batch(LaneContext& lane, std::span<const Digest> digests, uint64_t now_ms, Found* ret_found);

// One key whose location was read a moment ago (registry_find_plain). kFound: with a pin. kAbsent only says that the page does
// not hold this block, or no longer does, or that there is no pin slot: find_and_pin gives the answer.
Found pin_if_wanted(LaneContext& lane, PageRef likely, const Digest& digest, uint64_t now_ms);

}  // namespace maru::shm
