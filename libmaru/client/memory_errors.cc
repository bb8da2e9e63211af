#include "libmaru/client/memory_errors.h"

#include "libmaru/base/mapping.h"
#include "libmaru/client/thread_state.h"
#include "maru/maru.h"

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace maru::client {
namespace {

struct Frame {
  sigjmp_buf landing;
  uintptr_t start, end;
  BadRange bad;
  Frame* outer;
};

// The memory that a machine loses at once, as powers of two: from a page of the kernel to the largest huge page.
constexpr unsigned kLostBitsMin = 12, kLostBitsMax = 30;
constexpr uint64_t kOsPageBytes = 4096;

// In memory that the kernel empties in a child of fork(). There the parent's views are not mapped, the memory at their
// addresses is the child's own, and threads that were in the handler do not exist.
struct Table {
  std::atomic<BadPages*> clients[500];
  std::atomic<Table*> next;  // once there are more clients than places; never taken away
  // In the first table: handlers that are looking at `clients` now, in any table. A thread that frees a place waits for them.
  std::atomic<uint32_t> looking;
};
std::atomic<Table*> the_table{nullptr};
std::atomic<uint32_t> enabled{0};  // the flags
std::atomic<bool> installed{false};
struct sigaction previous;  // written before `installed`

void pass_on(int number, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(number, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(number);
  const bool is_notice = info->si_code == BUS_MCEERR_AO || info->si_code <= 0;
  if (is_notice && previous.sa_handler == SIG_IGN) return;  // an access cannot be ignored
  // The default action: the access is repeated and meets it; a notice, which nothing repeats, is sent again.
  ::signal(number, SIG_DFL);
  if (is_notice) ::raise(number);
}

constexpr bool is_size(unsigned bits) { return bits >= kLostBitsMin && bits <= kLostBitsMax; }

// Of memory with large pages the kernel names the first byte of the page, whichever the access met.
BadRange lost_with(const siginfo_t& info) {
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  const bool is_memory_error = info.si_code == BUS_MCEERR_AR || info.si_code == BUS_MCEERR_AO;
  const auto bits = unsigned(info.si_addr_lsb);
  if (!is_memory_error || !is_size(bits)) return {address, address + 1};
  const uintptr_t size = uintptr_t(1) << bits, start = address / size * size;
  return {start, start + size};
}

// A program's own handler that called this one may have blocked signals: a return would undo that, a jump does not.
void restore_signals(const void* context) {
  if (context) {
    ::pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
    return;
  }
  sigset_t bus;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  ::pthread_sigmask(SIG_UNBLOCK, &bus, nullptr);
}

BadPages* client_of(const Table& first, const BadRange& lost) {
  for (const Table* table = &first; table; table = table->next.load(std::memory_order_acquire))
    for (const auto& place : table->clients) {
      BadPages* client = place.load(std::memory_order_seq_cst);
      if (client && client->covers(lost)) return client;
    }
  return nullptr;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int code = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const BadRange lost = lost_with(*info);
  const bool is_access = info->si_code == BUS_MCEERR_AR || info->si_code == BUS_ADRERR;
  const ThreadState* state = thread_state_if_any();
  auto* frame = state ? static_cast<Frame*>(state->innermost) : nullptr;
  if (is_access && frame && lost.end > frame->start && lost.start < frame->end) {
    frame->bad = {std::max(lost.start, frame->start), std::min(lost.end, frame->end), info->si_code == BUS_ADRERR};
    restore_signals(context);
    errno = code;
    siglongjmp(frame->landing, 1);
  }
  bool is_done = false;
  const bool is_memory_error = info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO;
  Table* table = the_table.load(std::memory_order_acquire);
  if (is_memory_error && table && (enabled.load(std::memory_order_relaxed) & MARU_MEMORY_ERRORS_VIEWS) != 0) {
    table->looking.fetch_add(1, std::memory_order_seq_cst);
    if (BadPages* client = client_of(*table, lost)) {
      is_done = info->si_code == BUS_MCEERR_AO || client->replace(address, unsigned(info->si_addr_lsb));
      if (is_done) client->note(lost);
    }
    table->looking.fetch_sub(1, std::memory_order_seq_cst);
  }
  errno = code;
  if (!is_done) pass_on(number, info, context);
}

// The table there, or a new one. Nothing when the process has no memory left, or the kernel does not empty it (errno).
Table* table_at(std::atomic<Table*>& link) {
  if (Table* table = link.load(std::memory_order_acquire)) return table;
  const size_t bytes = size_t(::sysconf(_SC_PAGESIZE));
  static_assert(sizeof(Table) <= 4096);
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  Table* none = nullptr;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) {
    auto* made = new (page) Table{};
    if (link.compare_exchange_strong(none, made, std::memory_order_acq_rel)) return made;
  }
  const int code = errno;
  ::munmap(page, bytes);
  errno = code;
  return none;  // another thread's
}

// Returns the bits that were set before.
uint64_t set_bits(AtomicU64& word, uint64_t bits) {
  uint64_t before = word.load_relaxed();  // the CAS decides
  while ((before & bits) != bits && !word.cas_relaxed(before, before | bits)) {
  }
  return before;
}

// `last` counts.
constexpr uint64_t bits_between(uint32_t first, uint32_t last) {
  return ~uint64_t{0} << first & ~uint64_t{0} >> (63 - last);
}

int install() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (installed.load(std::memory_order_relaxed)) return 0;
  if (const int code = make_thread_state_key(); code != 0) return -code;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  // Not blocked inside the handler, since it may be left by a jump; on the program's alternate stack if it has one.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (::sigaction(SIGBUS, nullptr, &previous) != 0 || ::sigaction(SIGBUS, &action, nullptr) != 0) return -errno;
  installed.store(true, std::memory_order_release);
  return 0;
}

}  // namespace

int handle_memory_errors(uint32_t flags) {
  // A child of fork() has the handler already, and perhaps a mutex that a thread of its parent holds.
  if (!installed.load(std::memory_order_acquire))
    if (const int status = install(); status != 0) return status;
  enabled.fetch_or(flags, std::memory_order_relaxed);
  return 0;
}

bool run_guarded(const void* start, size_t bytes, void (*run)(void*), void* argument, BadRange* ret_bad) {
  ThreadState* const state = installed.load(std::memory_order_acquire) ? try_thread_state() : nullptr;
  if (state == nullptr) {  // or without memory
    run(argument);
    return true;
  }
  Frame frame;
  frame.start = reinterpret_cast<uintptr_t>(start);
  frame.end = frame.start + bytes;
  frame.bad = {};
  frame.outer = static_cast<Frame*>(state->innermost);
  if (sigsetjmp(frame.landing, 0) != 0) {
    state->innermost = frame.outer;
    *ret_bad = frame.bad;
    return false;
  }
  state->innermost = &frame;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the handler of this thread sees the frame whole
  run(argument);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  state->innermost = frame.outer;
  return true;
}

BadPages::BadPages(std::byte* base, uint64_t pages, uint64_t page_bytes, std::span<std::byte> mapped, uint64_t unit,
                   const Wake& wake)
    : base_(reinterpret_cast<uintptr_t>(base)),
      pages_(pages),
      page_bytes_(page_bytes),
      mapped_(reinterpret_cast<uintptr_t>(mapped.data())),
      mapped_end_(mapped_ + mapped.size()),
      unit_(std::max(unit, kOsPageBytes)),
      wake_(wake),
      bits_(std::make_unique<AtomicU64[]>((pages + 63) / 64)),
      met_(std::make_unique<AtomicU64[]>((pages + 63) / 64)) {
  for (AtomicU64& word : unsaid_) word.store_relaxed(0);              // no other thread has it yet
  for (std::atomic<Table*>* link = &the_table; place_ == nullptr;) {  // ends: a new table has a place, or there is none
    Table* table = table_at(*link);
    if (table == nullptr) {
      unplaced_because_ = errno;
      return;
    }
    for (auto& place : table->clients) {
      BadPages* nobody = nullptr;
      if (!place.compare_exchange_strong(nobody, this)) continue;
      place_ = &place;
      break;
    }
    link = &table->next;
  }
}

BadPages::~BadPages() {
  if (place_ == nullptr) return;
  BadPages* self = this;
  if (!place_->compare_exchange_strong(self, nullptr)) return;  // a child's copy of its parent's
  const Table& first = *the_table.load(std::memory_order_acquire);
  while (first.looking.load(std::memory_order_seq_cst) != 0) {  // ends: a handler looks and leaves
  }
}

void BadPages::note(const BadRange& bad) {
  if (!covers(bad)) return;
  const auto first = uint32_t((std::max(bad.start, base_) - base_) / page_bytes_);
  const auto last = uint32_t(std::min<uint64_t>((bad.end - 1 - base_) / page_bytes_, pages_ - 1));
  mark(first, last);
  for (uint32_t page = first; page <= last && page - first < kUnsaid; ++page) say(page);
}

void BadPages::mark(uint32_t first, uint32_t last) {
  for (uint32_t word = first / 64; word <= last / 64; ++word)
    set_bits(bits_[word], bits_between(word == first / 64 ? first % 64 : 0, word == last / 64 ? last % 64 : 63));
  is_any_.store_relaxed(1);  // never taken back
}

bool BadPages::look_for(uint32_t first, uint64_t bytes) {
  bool is_bad = false;
  const uint64_t end = first + (bytes + page_bytes_ - 1) / page_bytes_;
  for (uint64_t page = first; page < std::min(pages_, end); ++page) {
    if (!has(uint32_t(page))) continue;
    is_bad = true;
    const uint64_t bit = 1ull << page % 64;
    if ((set_bits(met_[page / 64], bit) & bit) == 0) say(uint32_t(page));
  }
  return is_bad;
}

// To marud, by the session thread.
void BadPages::say(uint32_t page) {
  for (AtomicU64& word : unsaid_) {
    uint64_t none = 0;
    if (word.load_relaxed() == uint64_t(page) + 1) return;  // as above
    if (word.load_relaxed() == 0 && word.cas_relaxed(none, uint64_t(page) + 1)) break;
  }
  wake_.wake();
}

bool BadPages::next_unsaid(uint32_t* ret_page) const {
  for (const AtomicU64& word : unsaid_) {
    const uint64_t found = word.load_relaxed();  // as above
    if (found == 0) continue;
    *ret_page = uint32_t(found - 1);
    return true;
  }
  return false;
}

void BadPages::was_said(uint32_t page) {
  for (AtomicU64& word : unsaid_) {
    uint64_t found = uint64_t(page) + 1;
    if (word.load_relaxed() == found && word.cas_relaxed(found, 0)) return;
  }
}

bool BadPages::replace(uintptr_t address, unsigned size_bits) {
  // Huge pages go as wholes.
  const uint64_t size = std::max(is_size(size_bits) ? uint64_t(1) << size_bits : 0, unit_);
  const uintptr_t start = std::max(mapped_, address / size * size);
  const uintptr_t end = std::min(mapped_end_, address / size * size + size);
  // First: a thread that has seen the private memory, or written into it, must find its page bad. If the memory cannot be
  // replaced, the pages are bad all the same, and the signal goes to its owner.
  mark(uint32_t((std::max(start, base_) - base_) / page_bytes_),
       uint32_t(std::min<uint64_t>((end - 1 - base_) / page_bytes_, pages_ - 1)));
  return map_zeros_over(reinterpret_cast<void*>(start), end - start);
}

}  // namespace maru::client
