// Holding blocks for transfers in flight: part of maru/blocks.hpp, which programs include.
#ifndef MARU_BLOCKS_KEEP_ALIVE_HPP
#define MARU_BLOCKS_KEEP_ALIVE_HPP

#include <maru/blocks/handles.hpp>
#include <maru/blocks/matched.hpp>

namespace maru {
inline namespace api_0 {

// Holds a handle of any state without its type, for a transfer that knows none: its pages are neither evicted nor used again
// while a copy of this lives. Copies share the handle, and may go on any thread.
class KeepAlive {
 public:
  KeepAlive() = default;
  // Takes the handle: a MutableBlock or CompleteBlock that a device writes, an ImmutableBlock or ImmutableBlocks that one reads
  // (clone() one to keep the other). For want of memory is_held() is false, and the handle is as it was.
  template <typename Handle>
    requires(std::is_same_v<Handle, MutableBlock> || std::is_same_v<Handle, CompleteBlock> ||
             std::is_same_v<Handle, ImmutableBlock> || std::is_same_v<Handle, ImmutableBlocks>)
  explicit KeepAlive(Handle&& handle) {
    held_ = new (std::nothrow) Of<Handle>(std::move(handle));
  }
  KeepAlive(const KeepAlive& other) : held_(other.held_) {
    if (held_) held_->copies.fetch_add(1, std::memory_order_relaxed);
  }
  KeepAlive(KeepAlive&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  KeepAlive& operator=(KeepAlive other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~KeepAlive() { release(); }

  bool is_held() const { return held_ != nullptr; }
  // Lets go; the last copy ends the handle.
  void release() {
    Held* const held = std::exchange(held_, nullptr);
    if (held && held->copies.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held;
  }
  // The handle again, where this is its only copy and Handle its type; otherwise an empty one, and this keeps it.
  template <typename Handle>
  Handle take() {
    auto* const of = dynamic_cast_to<Handle>();
    if (of == nullptr || of->copies.load(std::memory_order_acquire) != 1) return Handle();
    Handle handle = std::move(of->handle);
    release();
    return handle;
  }

 private:
  struct Held {
    explicit Held(const void* of_type) : type(of_type) {}
    virtual ~Held() = default;
    const void* type;
    std::atomic<uint32_t> copies{1};
  };
  template <typename Handle>
  static inline const char kType = 0;  // its address names the type, without RTTI
  template <typename Handle>
  struct Of final : Held {
    explicit Of(Handle&& taken) : Held(&kType<Handle>), handle(std::move(taken)) {}
    Handle handle;
  };
  template <typename Handle>
  Of<Handle>* dynamic_cast_to() const {
    return held_ && held_->type == &kType<Handle> ? static_cast<Of<Handle>*>(held_) : nullptr;
  }

  Held* held_ = nullptr;
};

}  // namespace api_0
}  // namespace maru

#endif
