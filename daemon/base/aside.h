// Work that may last as long as another party likes (a disk, a name service), done by a thread of its own while marud
// serves others. The thread has its own copies and nothing else; the deciding thread takes the result, in a later turn.
//
// marud does not wait for such a thread: it ends while one lasts, as if the work had been cut off, and the asker gets
// no answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace maru::daemon {

// How many works have not been seen to end by the deciding thread: while there are some, it looks again soon. Atomic,
// since other threads open and close pools, too.
inline std::atomic<size_t> works_aside = 0;
inline constexpr uint64_t kAsideLookMs = 5;

template <typename T>
class Aside {
 public:
  Aside() = default;
  Aside(Aside&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  Aside& operator=(Aside&& other) noexcept {
    forget();
    shared_ = std::exchange(other.shared_, nullptr);
    return *this;
  }
  ~Aside() { forget(); }

  // `work` owns all that it uses. An exception of it becomes `otherwise`; without a thread to be had the work is done
  // here and now. An exception of begin() (no memory) leaves this object as it was.
  template <typename F>
  void begin(F work, T otherwise) {
    auto begun = std::make_shared<Shared>();
    auto run = std::make_shared<F>(std::move(work));
    const auto done = [shared = begun, run, failed = std::make_shared<T>(std::move(otherwise))] {
      try {
        shared->value.emplace((*run)());
      } catch (const std::exception&) {
        shared->value.emplace(std::move(*failed));
      }
      shared->is_done.store(true, std::memory_order_release);
    };
    forget();
    shared_ = std::move(begun);
    ++works_aside;
    try {
      std::thread(done).detach();
    } catch (const std::exception&) {  // std::system_error, or no memory for one
      done();
    }
  }

  bool is_begun() const { return shared_ != nullptr; }
  // Its thread is at it still.
  bool is_lasting() const { return shared_ && !shared_->is_done.load(std::memory_order_acquire); }
  // Once, when it is done.
  std::optional<T> take() {
    if (!shared_ || !shared_->is_done.load(std::memory_order_acquire)) return std::nullopt;
    std::optional<T> value = std::move(shared_->value);
    forget();
    return value;
  }

 private:
  struct Shared {
    std::atomic<bool> is_done{false};
    std::optional<T> value;  // the thread's until then
  };
  void forget() {
    if (shared_) --works_aside;
    shared_.reset();
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace maru::daemon
