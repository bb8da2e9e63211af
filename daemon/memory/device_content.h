// The content of a device, found out before anything is written to it; and clearing it, so that no client ever sees the
// data of others.
//
// Devices cannot be read but only mapped. A mapping is looked at under a guard, a window at a time, by a few threads.
#pragma once

#include "libmaru/base/result.h"
#include "maru/format/control_region.h"
#include "maru/format/data_label.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <sys/mman.h>

namespace maru::daemon {

using Uuid = std::array<uint8_t, 16>;

// The bytes of a device, to be looked at. `fd` stays the caller's.
struct DeviceBytes {
  int fd = -1;
  uint64_t bytes = 0;
  uint64_t alignment = 4096;  // of mappings
  std::string name;           // for people
};

// Neither half of it is zero, as a death between the two words that it is written in leaves it.
bool is_whole(const Uuid& uuid);

struct DeviceLabel {
  enum class Kind : uint8_t {
    kNothing,  // zeros, as far as a label reaches: it may be blank
    kPool,     // a control region that this version can use
    kData,     // the pages of a split pool
    kClaimed,  // a marud formats it at this moment, or died over it (libmaru/shm/region/format_claim.h)
    kGivenUp,  // a marud clears it at this moment, or died over it
    kDamaged,  // begins as a control region does, and is none that can be used
    kForeign,  // something else
  };
  Kind kind = Kind::kNothing;
  std::string found;  // for people: "a pool of marud, uuid ..., 64 GiB in pages of 2 MiB", "an ext4 file system"
  // kPool, kData; kClaimed: of the pages' label, zeros before there is one; kGivenUp: of the pool that is cleared
  Uuid uuid = {};
  format::Header header = {};   // kPool
  format::DataLabel data = {};  // kData; else the bytes in its place
  uint32_t claimed_by = 0;      // kClaimed: the number of a machine, or 0
  bool is_of_pages = false;     // kGivenUp: of a split pool
  // kPool, kData, kDamaged: by several hosts; kGivenUp: several reach it, and another host may be clearing it
  bool is_shared = false;
};

// Looks at the beginning alone. Only reads. EHWPOISON: there is bad memory.
Result<DeviceLabel> read_label(const DeviceBytes& device);

// Whether the label of these pages, or the existing part of it, was written under the claim on `control`: a formatting was cut
// off, and they hold nothing.
bool are_claimed(const DeviceLabel& pages, uint64_t pages_bytes, const DeviceLabel& control);

// Told of progress from time to time; returns false to have the work ended early (ECANCELED).
using Progress = std::function<bool(uint64_t done_bytes, uint64_t of_bytes)>;

// Where the first byte that is not zero lies, of all; nothing when there is none. EHWPOISON: some of it cannot be read.
Result<std::optional<uint64_t>> find_content(const DeviceBytes& device, const Progress& progress);

// Gives the content up: says so at its beginning, for clear_content(). `uuid`, `is_shared`: shm::begin_clearing().
Result<void> give_up_content(const DeviceBytes& device, bool is_of_pages, const Uuid& uuid, bool is_shared = false);
// Makes all given-up content zero, and flushes that; the mark last: a half-cleared device is known by it.
Result<void> clear_content(const DeviceBytes& device, const Progress& progress);

// Whether these pages are labelled for a pool of this uuid in part, as a death while that was done leaves them.
bool are_labelled_in_part(const DeviceLabel& pages, uint64_t pages_bytes, const Uuid& uuid);

// Calls `work` once for each number below `count`, `step` neighbouring numbers at a time, on several threads, and waits.
void in_parallel(uint64_t count, uint64_t step, const std::function<void(uint64_t)>& work);

// A function over [begin, end) of a mapped window, called by several threads for different parts.
using Look = std::function<void(std::span<std::byte> part, uint64_t offset)>;
// Maps the device window by window and has every byte looked at once. Parts begin at multiples of 2 MiB. EHWPOISON: bad memory.
Result<void> look_at_all(const DeviceBytes& device, int protection, const Look& look, const Progress& progress);

}  // namespace maru::daemon
