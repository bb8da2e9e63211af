// The client's reaction when memory goes away: single pages that are bad, and the whole pool when marud wants it back.
//
// Leaving. marud's message (the pool is being removed, or was fenced) sets a flag; from then on nothing new is begun, and
// views stay valid until they are released. When none is left the session thread puts private, zeroed memory in the place of
// everything that was mapped, closes the descriptor and says goodbye. A call that is under way in another thread meets
// either the pool or that memory, where every page word is OUT and every bucket empty: it finds nothing. It cannot come back
// with a view: it looks at the flag after it has pinned, and the session thread counts the pins after it has set the flag.
#include "libmaru/client/call.h"
#include "libmaru/client/client.h"
#include "libmaru/client/payload_copy.h"
#include "libmaru/shm/region/flush.h"

#include <algorithm>
#include <cerrno>
#include <sys/stat.h>
#include <utility>

namespace maru::client {
namespace {
constexpr int kLookAgainMs = 20;
// While marud is told of a bad page, calls of other threads that need marud wait. A marud that hangs must not
// make that longer.
constexpr uint32_t kTellMs = 50;
constexpr uint32_t kTellAgainMs = 500;
constexpr uint32_t kTellAgainMaxMs = 30'000;  // when marud hangs
}  // namespace

bool Client::checksum(const void* data, uint64_t bytes, uint64_t* ret_checksum) {
  BadRange bad;
  const std::span<const std::byte> payload{static_cast<const std::byte*>(data), size_t(bytes)};
  if (guarded(data, bytes, [&] { *ret_checksum = shm::payload_checksum(payload); }, &bad)) return true;
  bad_pages_->note(bad);
  return false;
}

bool Client::flush(const void* data, uint64_t bytes) {
  BadRange bad;
  if (guarded(data, bytes, [&] { shm::flush_lines(data, size_t(bytes)); }, &bad)) return true;
  bad_pages_->note(bad);
  return false;
}

bool Client::is_cut_off() const {
  struct stat status = {};
  const uint64_t end = attached_.pages_offset + region_.pages() * region_.page_bytes();
  return ::fstat(device_.get(), &status) != 0 || uint64_t(status.st_size) < end;
}

int Client::fill(const maru_buffer& buffer, const void* data) {
  BadRange bad;
  if (guarded(buffer.data, buffer.bytes, [&] { copy_payload(buffer.data, data, buffer.bytes); }, &bad)) return 0;
  if (bad.is_absent && !is_cut_off()) return -ENOSPC;  // the page is good as soon as the file system has room for it
  // The pages stay RESERVED, so that no process gets them before marud has looked.
  bad_pages_->note(bad);
  return -EHWPOISON;
}

int Client::view_error(const maru_view& view) const {
  const shm::PageRef ref = shm::PageRef::from_bits(view.block);
  if (!region_.is_page(ref) || view.bytes == 0) return -EINVAL;
  const uint64_t bytes = std::max(view.bytes, shm::metadata_of(region_, ref.page()).end());
  const uint64_t pages = (bytes - 1) / region_.page_bytes() + 1;
  for (uint64_t i = 0; i < pages && ref.page() + i < region_.pages(); ++i)
    if (bad_pages_->has(uint32_t(ref.page() + i))) return -EHWPOISON;
  return 0;
}

// By the session thread, holding nothing.
int Client::upkeep() {
  if (Tracing* traced = tracing()) traced->upkeep();
  if (left_) return -1;
  uint32_t page = 0;
  int again_ms = -1;
  while (again_ms < 0 && bad_pages_->next_unsaid(&page)) {
    if (const uint32_t left_ms = tell_again_.left_ms(); left_ms != 0) {
      again_ms = int(left_ms);
      break;
    }
    page_told_.store(page, std::memory_order_relaxed);
    const wire::BadMemoryReport report{page, 0};
    const auto told = connection_.request(wire::Type::kBadMemory, wire::bytes_of(report), kTellMs);
    const int code = told ? 0 : told.error().code;
    if (code == ENOTCONN || code == ETIMEDOUT) {  // the marud that comes next is told, or this one when it goes on
      tell_pause_ms_ = code == ETIMEDOUT ? std::clamp(2 * tell_pause_ms_, kTellAgainMs, kTellAgainMaxMs) : kTellAgainMs;
      tell_again_ = wire::Deadline(tell_pause_ms_);
      again_ms = int(tell_pause_ms_);
      break;
    }
    tell_pause_ms_ = 0;
    bad_pages_->was_said(page);
  }
  if (!is_leaving()) return again_ms;
  if (pins_.slots_in_use() != 0) return kLookAgainMs;
  leave();
  return left_ ? -1 : kLookAgainMs;
}

// marud wants the memory back, or has fenced it: the memory may get another use by now.
void Client::begin_leaving() {
  // Without a session thread the end of the last view could not be noticed: such a client stays.
  if (!connection_.is_watched()) return;
  leaving_.store(true, std::memory_order_seq_cst);
  connection_.wake();  // another thread's request may have read this
}

int Client::before_unmap(void (*call)(void*), void* argument, void** ret_pages) {
  const std::lock_guard lock(unmap_mutex_);
  if (is_unmapping_ && call != nullptr) return -ESHUTDOWN;
  unmap_call_ = call;
  unmap_argument_ = argument;
  if (ret_pages) *ret_pages = payload_->base();
  return 0;
}

// Devices forget the addresses now. One may be copying into pages that were allocated and not stored, of which no pin tells.
void Client::end_foreign_use() {
  const std::lock_guard lock(unmap_mutex_);
  is_unmapping_ = true;
  if (auto* const call = std::exchange(unmap_call_, nullptr)) call(unmap_argument_);
}

// The control region goes first. As long as it is there, a store under way may publish a page, and the page's filled and summed
// bytes must lie in the pool then. Either may fail for want of address space. Then it is tried again later, and marud names
// this process at its deadline.
void Client::leave() {
  end_foreign_use();
  if (!map_zeros_over(control_.data(), control_.size()) || !payload_->let_go()) return;
  ::madvise(control_.data(), control_.size(), MADV_DONTFORK);
  left_ = true;
  connection_.part();
  device_.reset();
  control_device_.reset();
}

}  // namespace maru::client
