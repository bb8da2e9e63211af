// XXH3 of 128 bits over pieces, with AVX2 where the processor has it. That is twice as fast as the instructions of every
// x86-64, and gives the same sum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace maru::adapters {

using Checksum = std::array<uint8_t, 16>;

class Checksummer {
 public:
  virtual ~Checksummer() = default;
  virtual void add(const std::byte* bytes, uint64_t count) = 0;
  // In the canonical order of bytes.
  virtual Checksum sum() const = 0;
};

// Null: no memory.
std::unique_ptr<Checksummer> make_checksummer();
// The two ways; AVX2: null where the processor has it not.
std::unique_ptr<Checksummer> plain_checksummer();
std::unique_ptr<Checksummer> avx2_checksummer();

}  // namespace maru::adapters
