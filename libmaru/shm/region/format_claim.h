// The claim of a process that formats this memory. The first word of the memory is the beginning of a header; during formatting
// it names the formatter. Two hosts that found the same memory blank meet in it, and one of them formats. The word also tells
// of a formatting that was cut off. The steps are in docs/format.md, "Format".
//
// Thread safety: any process of any host. Progress: one CAS.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::shm {

struct FormatClaim {
  uint64_t bits = 0;

  // `machine`: a number above 0 that tells this machine from others that may format at the same time; 0 where a lock keeps all
  // others out.
  static constexpr FormatClaim of(uint32_t machine) { return {uint64_t(machine) << 32 | kMark}; }
  constexpr bool is_one() const { return uint32_t(bits) == kMark; }
  constexpr uint32_t machine() const { return uint32_t(bits >> 32); }

  static constexpr uint32_t kMark = 0x464b524d;  // "MRKF" when read as bytes; a magic number of ours begins with "MARU"
};

// The first word of memory that begins with these bytes.
FormatClaim claim_in(std::span<const std::byte> begin);

// Claims memory that is blank, or that this machine has claimed before (and died over it). False: another host has, or it holds
// something; the claim that was found is in ret_found.
bool claim_format(std::span<std::byte> memory, uint32_t machine, FormatClaim* ret_found);

// The uuid beside the claim that memory begins with, for which its pages are labelled; zeros before there is one.
std::array<uint8_t, 16> claimed_uuid(std::span<const std::byte> begin);
// Of memory that the caller has claimed: writes `uuid` beside the claim; if a formatting that was cut off has left one there,
// that is kept and returned in `uuid`.
void settle_uuid(std::span<std::byte> memory, uint8_t (&uuid)[16]);
// Makes a pool without users, whose blocks are given up, look as if its formatting had been cut off. The caller has the lock.
// The uuid stays, so its pages still belong to it.
void give_up_pool(std::span<std::byte> memory);

// Stands in the place of a claim while given-up memory is cleared: a process that finds it goes on clearing. It concerns one
// device of a pool, or both. A lock keeps all others of this host out, but no process of another host.
struct ClearingMark {
  uint64_t bits = 0;

  static constexpr ClearingMark of(bool is_of_pages, bool has_uuid, bool is_shared = false) {
    return {uint64_t(uint32_t(has_uuid) | uint32_t(is_of_pages) << 1 | uint32_t(is_shared) << 2) << 32 | kMark};
  }
  constexpr bool is_one() const { return uint32_t(bits) == kMark && bits >> 35 == 0; }
  constexpr bool has_uuid() const { return (bits >> 32 & 1) != 0; }  // there is one beside it, as beside a claim
  constexpr bool is_of_pages() const { return (bits >> 33 & 1) != 0; }
  // Several hosts reach it, so another host may be clearing it.
  constexpr bool is_shared() const { return (bits >> 34 & 1) != 0; }

  static constexpr uint32_t kMark = 0x434b524d;  // "MRKC" when read as bytes
};
inline constexpr size_t kMarkedBytes = 64;  // the line of the mark, with the uuid: cleared last

ClearingMark clearing_mark_in(std::span<const std::byte> begin);
// Marks memory before any of it is cleared. `uuid`: of the pool that is cleared away, or any; its two devices have the same.
void begin_clearing(std::span<std::byte> memory, bool is_of_pages, const uint8_t (&uuid)[16], bool is_shared = false);
// Of memory that begins with a mark, and is zero and flushed behind kMarkedBytes: makes these zero, too.
void end_clearing(std::span<std::byte> memory);

}  // namespace maru::shm
