#include "libmaru/adapters/register.h"

#define XXH_INLINE_ALL
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

namespace maru::adapters {
namespace {

constexpr uint32_t kGone = UINT32_MAX;
// Each process has a byte of the file, far behind its end. A living process has a lock on its byte.
constexpr int64_t kOwnersAt = int64_t{1} << 40;
constexpr int64_t kMakersAt = kOwnersAt - 1;
// Entries whose memory is reserved together: writing to a page for which a file system has no room would end the process.
constexpr uint32_t kEntriesAtOnce = 1024;

struct flock byte_lock(int64_t at, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = at;
  lock.l_len = 1;
  return lock;
}

timespec deadline_in(uint32_t ms) {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  time.tv_sec += ms / 1000;
  time.tv_nsec += long(ms % 1000) * 1'000'000;
  if (time.tv_nsec >= 1'000'000'000) time.tv_sec += 1, time.tv_nsec -= 1'000'000'000;
  return time;
}

// Waits for the lock of processes that make or open a register; a process holds it for some system calls.
bool lock_makers(int fd, uint32_t timeout_ms) {
  for (uint32_t waited_ms = 0;; ++waited_ms) {
    struct flock lock = byte_lock(kMakersAt, F_WRLCK);
    if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return true;
    if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || waited_ms >= timeout_ms) return false;
    const timespec pause = {0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
}
void unlock_makers(int fd) {
  struct flock lock = byte_lock(kMakersAt, F_UNLCK);
  ::fcntl(fd, F_OFD_SETLK, &lock);
}

bool make_lock(pthread_mutex_t* lock) {
  pthread_mutexattr_t attributes;
  if (::pthread_mutexattr_init(&attributes) != 0) return false;
  const bool is_made = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                       ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                       ::pthread_mutex_init(lock, &attributes) == 0;
  ::pthread_mutexattr_destroy(&attributes);
  return is_made;
}

// Opens a file of this user's, or makes it.
int open_own(const std::string& path, mode_t mode, FileDescriptor* ret, maru_adapters_reason* reason) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode));
  if (!file.is_open())
    return fail(reason, errno, "cannot open the register %s: %s", path.c_str(), std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(reason, EBADMSG, "the register %s is no plain file", path.c_str());
  // In /dev/shm each user may make a file of this name first.
  if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0)
    return fail(reason, EACCES,
                "the register %s belongs to user %u, with mode %03o; expected user %u, and no other writer",
                path.c_str(), unsigned(status.st_uid), unsigned(status.st_mode & 0777), unsigned(::geteuid()));
  *ret = std::move(file);
  return 0;
}

}  // namespace

uint64_t hash_of_name(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

int Register::open(const Wish& wish, maru_adapters_reason* reason) {
  timeout_ms_ = wish.timeout_ms;
  if (const int status = open_own(wish.path, 0600, &file_, reason); status < 0) return status;
  if (!lock_makers(file_.get(), wish.timeout_ms))
    return fail(reason, ETIMEDOUT, "another process makes the register %s, for more than %u ms", wish.path.c_str(),
                wish.timeout_ms);
  struct stat status = {};
  const bool is_new = ::fstat(file_.get(), &status) != 0 || status.st_size == 0;
  int result = is_new ? make(wish, reason) : adopt(wish, reason);
  if (result == 0) result = open_totals(wish, is_new, reason);
  unlock_makers(file_.get());
  if (result < 0) return result;
  rules_ = head().rules;
  return hold_own_number(reason);
}

int Register::map(uint64_t bytes, uint32_t entries_max, maru_adapters_reason* reason) {
  Result<Mapping> mapping = Mapping::map_shared(file_.get(), 0, bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return fail(reason, mapping.error().code, "the register: %s", mapping.error().text().c_str());
  mapping_ = std::move(*mapping);
  const Places places = places_of(entries_max);
  buckets_ = reinterpret_cast<uint32_t*>(mapping_.data() + places.buckets);
  for (uint32_t form = 0; form < kForms; ++form)
    lists_[form] = reinterpret_cast<uint32_t*>(mapping_.data() + places.lists) + uint64_t{form} * entries_max;
  entries_ = reinterpret_cast<Entry*>(mapping_.data() + places.entries);
  entries_max_ = entries_max;
  buckets_count_ = places.buckets_count;
  return 0;
}

int Register::make(const Wish& wish, maru_adapters_reason* reason) {
  const Places places = places_of(wish.entries_max);
  if (::ftruncate(file_.get(), off_t(places.bytes)) != 0 ||
      ::posix_fallocate(file_.get(), 0, off_t(places.entries)) != 0)
    return fail(reason, ENOSPC, "no room for a register of %llu bytes: %s", ull{places.bytes}, wish.path.c_str());
  if (const int status = map(places.bytes, wish.entries_max, reason); status < 0) return status;
  Head& made = head();
  std::memset(mapping_.data(), 0, places.entries);
  made.magic = kRegisterMagic;
  made.version = kRegisterVersion;
  made.file_bytes = places.bytes;
  std::memcpy(made.pool_uuid, wish.pool_uuid, sizeof(made.pool_uuid));
  made.page_bytes = wish.page_bytes;
  made.part_bytes = wish.part_bytes;
  made.entries_max = wish.entries_max;
  made.buckets = places.buckets_count;
  made.rules = wish.rules;
  std::memcpy(made.base_model, wish.base_model.data(), std::min(wish.base_model.size(), sizeof(made.base_model) - 1));
  std::memcpy(made.base_fingerprint, wish.base_fingerprint, sizeof(made.base_fingerprint));
  made.owners_next.store(1, std::memory_order_relaxed);
  if (!make_lock(&made.lock)) return fail(reason, EOPNOTSUPP, "this system has no robust locks between processes");
  made.ready.store(1, std::memory_order_release);  // [pairs adapters.ready]
  return 0;
}

int Register::adopt(const Wish& wish, maru_adapters_reason* reason) {
  struct stat status = {};
  Head copy;
  if (::fstat(file_.get(), &status) != 0 ||
      ::pread(file_.get(), static_cast<void*>(&copy), sizeof(copy), 0) != ssize_t(sizeof(copy)))
    return fail(reason, EBADMSG, "%s is no register: it is too short", wish.path.c_str());
  // The lock of the makers orders this with the register's maker. [pairs adapters.ready]
  if (copy.ready.load(std::memory_order_acquire) != 1) {
    // Its maker died before any process could use it.
    if (::ftruncate(file_.get(), 0) != 0) return fail(reason, errno, "cannot make %s anew", wish.path.c_str());
    return make(wish, reason);
  }
  if (copy.magic != kRegisterMagic || copy.version != kRegisterVersion)
    return fail(reason, EBADMSG, "%s is no register of version %u: remove the file when no process uses it",
                wish.path.c_str(), kRegisterVersion);
  if (copy.entries_max == 0 || copy.entries_max > MARU_ADAPTERS_ENTRIES_MAX ||
      places_of(copy.entries_max).bytes != uint64_t(status.st_size) || copy.file_bytes != uint64_t(status.st_size) ||
      copy.rules.window_ms == 0 || copy.part_bytes == 0)
    return fail(reason, EBADMSG, "the register %s is damaged: remove the file when no process uses it",
                wish.path.c_str());
  if (std::memcmp(copy.pool_uuid, wish.pool_uuid, sizeof(copy.pool_uuid)) != 0 || copy.page_bytes != wish.page_bytes)
    return fail(reason, EXDEV, "the register %s is of another pool: choose another register_path, or remove the file",
                wish.path.c_str());
  if (!wish.base_model.empty() &&
      wish.base_model != std::string_view(copy.base_model, ::strnlen(copy.base_model, sizeof(copy.base_model))))
    return fail(reason, EXDEV, "the register's base model is \"%.255s\", not \"%s\": a register has one",
                copy.base_model, wish.base_model.c_str());
  static constexpr uint8_t kNone[16] = {};
  if (std::memcmp(wish.base_fingerprint, kNone, sizeof(kNone)) != 0 &&
      std::memcmp(wish.base_fingerprint, copy.base_fingerprint, sizeof(kNone)) != 0)
    return fail(reason, EXDEV,
                "the register is for a base model with another fingerprint: a register has one base model");
  return map(copy.file_bytes, copy.entries_max, reason);
}

// With the makers' lock. Totals belong to this register: totals of an older register begin anew.
int Register::open_totals(const Wish& wish, bool is_new, maru_adapters_reason* reason) {
  const std::string path = wish.path + format::kAdapterTotalsSuffix;
  FileDescriptor file;
  if (const int status = open_own(path, 0644, &file, reason); status < 0) return status;
  if (::posix_fallocate(file.get(), 0, off_t(format::kAdapterTotalsBytes)) != 0)
    return fail(reason, ENOSPC, "no room for %s", path.c_str());
  Result<Mapping> mapping = Mapping::map_shared(file.get(), 0, format::kAdapterTotalsBytes, PROT_READ | PROT_WRITE);
  if (!mapping) return fail(reason, mapping.error().code, "%s: %s", path.c_str(), mapping.error().text().c_str());
  totals_ = std::move(*mapping);
  format::AdapterTotals& own = totals();
  if (!is_new && own.magic.load_acquire() == format::kAdapterTotalsMagic &&  // [pairs adapters.totals]
      own.version == format::kAdapterTotalsVersion && std::memcmp(own.pool_uuid, wish.pool_uuid, 16) == 0)
    return 0;
  std::memset(static_cast<void*>(&own), 0, sizeof(own));
  own.version = format::kAdapterTotalsVersion;
  std::memcpy(own.pool_uuid, wish.pool_uuid, sizeof(own.pool_uuid));
  own.magic.store_release(format::kAdapterTotalsMagic);  // [pairs adapters.totals]
  show_residents();
  return 0;
}

// Shows the residents to readers of the totals: the register's own sums decide.
void Register::show_residents() const {
  const auto show = [&](format::AdapterTotal which, uint64_t value) { totals().values[which].store_relaxed(value); };
  const Head& own = head();
  show(format::kAdapterRegistered, own.entries_live);
  show(format::kAdapterHot, own.resident_count[index_of(Form::kHot)]);
  show(format::kAdapterWarm, own.resident_count[index_of(Form::kWarm)]);
  show(format::kAdapterHotBytes, own.resident_bytes[index_of(Form::kHot)]);
  show(format::kAdapterWarmBytes, own.resident_bytes[index_of(Form::kWarm)]);
}

int Register::hold_own_number(maru_adapters_reason* reason) {
  for (int tries = 0; tries < 64; ++tries) {
    const uint32_t number = head().owners_next.fetch_add(1, std::memory_order_relaxed);
    if (number == 0) continue;  // after 2^32 processes
    struct flock lock = byte_lock(kOwnersAt + number, F_WRLCK);
    if (::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) {
      own_number_ = number;
      return 0;
    }
    if (errno != EAGAIN && errno != EACCES) break;
  }
  return fail(reason, errno, "cannot lock the register: %s", std::strerror(errno));
}

bool Register::is_dead(uint32_t owner) const {
  if (owner == own_number_) return false;
  struct flock lock = byte_lock(kOwnersAt + owner, F_WRLCK);
  return ::fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

Register::Locked Register::lock() const {
  pthread_mutex_t* const mutex = &head().lock;
  const timespec until = deadline_in(timeout_ms_);
  const int result = ::pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
  if (result == EOWNERDEAD) {
    rebuild();
    ::pthread_mutex_consistent(mutex);
    return Locked(mutex);
  }
  return Locked(result == 0 ? mutex : nullptr);
}

// Names, lists, sums and free entries, from the entries. A resident bit may be missing: then the form is in the pool, and the
// register does not count it. The adapter's next acquire finds it there.
void Register::rebuild() const {
  Head& shared = head();
  std::memset(buckets_, 0, uint64_t{buckets_count_} * sizeof(uint32_t));
  shared.entries_used = std::min(shared.entries_used, entries_max_);
  shared.entries_live = shared.first_free = 0;
  for (uint32_t form = 0; form < kForms; ++form) shared.resident_count[form] = 0, shared.resident_bytes[form] = 0;
  for (uint32_t number = shared.entries_used; number-- > 0;) {
    Entry& own = entries_[number];
    if (!is_live(number)) {
      own.next_free = shared.first_free;
      shared.first_free = number + 1;
      continue;
    }
    ++shared.entries_live;
    enter_name(number);
    for (uint32_t form = 0; form < kForms; ++form) {
      if (!is_resident(number, Form(form))) continue;
      own.list_place[form] = shared.resident_count[form];
      lists_[form][shared.resident_count[form]++] = number;
      shared.resident_bytes[form] += own.form_bytes[form];
    }
  }
  show_residents();
}

void Register::enter_name(uint32_t number) const {
  uint32_t at = bucket_of(entries_[number].name_hash);
  // There are twice as many buckets as entries, so one is free.
  for (uint32_t tries = 0; tries < buckets_count_ && buckets_[at] != 0 && buckets_[at] != kGone; ++tries)
    at = (at + 1) & (buckets_count_ - 1);
  buckets_[at] = number + 1;
}

uint32_t Register::find(std::string_view name) const {
  const uint64_t hash = hash_of_name(name);
  uint32_t at = bucket_of(hash);
  for (uint32_t tries = 0; tries < buckets_count_ && buckets_[at] != 0; ++tries, at = (at + 1) & (buckets_count_ - 1)) {
    const uint32_t number = buckets_[at] - 1;
    if (buckets_[at] == kGone || number >= entries_max_) continue;
    const Entry& own = entries_[number];
    if (own.name_hash == hash && is_live(number) &&
        name == std::string_view(own.name, ::strnlen(own.name, sizeof(own.name))))
      return number;
  }
  return entries_max_;
}

int Register::take_free(uint32_t* ret_number) {
  Head& shared = head();
  uint32_t number = 0;
  if (shared.first_free != 0 && shared.first_free <= entries_max_) {
    number = shared.first_free - 1;
    shared.first_free = entries_[number].next_free;
  } else {
    if (shared.entries_used >= entries_max_) return -ENOSPC;
    number = shared.entries_used;
    if (number % kEntriesAtOnce == 0) {
      const uint64_t offset = uint64_t(reinterpret_cast<std::byte*>(&entries_[number]) - mapping_.data());
      const uint64_t bytes = std::min<uint64_t>(uint64_t{kEntriesAtOnce} * sizeof(Entry), mapping_.size() - offset);
      if (::posix_fallocate(file_.get(), off_t(offset), off_t(bytes)) != 0) return -ENOSPC;
    }
    ++shared.entries_used;
  }
  Entry& own = entries_[number];
  const uint64_t life = own.life.load(std::memory_order_relaxed);
  std::memset(static_cast<void*>(&own), 0, sizeof(own));
  own.life.store(life, std::memory_order_relaxed);
  *ret_number = number;
  return 0;
}

void Register::publish(uint32_t number) {
  Entry& own = entries_[number];
  own.name_hash = hash_of_name({own.name, ::strnlen(own.name, sizeof(own.name))});
  own.life.store(own.life.load(std::memory_order_relaxed) | 1, std::memory_order_release);  // [pairs adapters.life]
  ++head().entries_live;
  enter_name(number);
  show_residents();
}

void Register::forget(uint32_t number) {
  Entry& own = entries_[number];
  for (const Form form : {Form::kHot, Form::kWarm})
    if (is_resident(number, form)) set_resident(number, form, false, 0);
  own.life.store(own.life.load(std::memory_order_relaxed) + 1, std::memory_order_release);  // [pairs adapters.life]
  uint32_t at = bucket_of(own.name_hash);
  for (uint32_t tries = 0; tries < buckets_count_ && buckets_[at] != 0; ++tries, at = (at + 1) & (buckets_count_ - 1))
    if (buckets_[at] == number + 1) {
      // No entry was made behind an empty bucket, so such a bucket may end a search here.
      buckets_[at] = buckets_[(at + 1) & (buckets_count_ - 1)] == 0 ? 0 : kGone;
      break;
    }
  --head().entries_live;
  own.next_free = head().first_free;
  head().first_free = number + 1;
  show_residents();
}

void Register::set_resident(uint32_t number, Form form, bool is_resident_now, uint64_t now_ms) {
  Entry& own = entries_[number];
  Head& shared = head();
  const uint32_t at = index_of(form), bit = 1u << at;
  if (is_resident(number, form) == is_resident_now) return;
  uint32_t& count = shared.resident_count[at];
  if (is_resident_now) {
    if (count >= entries_max_) return;
    own.since_ms[at] = now_ms;
    own.list_place[at] = count;
    lists_[at][count++] = number;
    shared.resident_bytes[at] += own.form_bytes[at];
    own.resident.fetch_or(bit, std::memory_order_relaxed);  // a hint: the pool says whether the form is there
    show_residents();
    return;
  }
  own.resident.fetch_and(~bit, std::memory_order_relaxed);
  const uint32_t place = own.list_place[at];
  if (count == 0 || place >= count || lists_[at][place] != number) return;
  const uint32_t last = lists_[at][--count];
  lists_[at][place] = last;
  if (last < entries_max_) entries_[last].list_place[at] = place;
  shared.resident_bytes[at] -= std::min(shared.resident_bytes[at], own.form_bytes[at]);
  show_residents();
}

void Register::begin(uint32_t number, Form form, Doing doing) {
  EntryWord& word = entries_[number].words[index_of(form)];
  word.owner.store(own_number_, std::memory_order_relaxed);
  word.doing.store(uint32_t(doing), std::memory_order_relaxed);  // under the lock
}

void Register::end(uint32_t number, Form form) {
  EntryWord& word = entries_[number].words[index_of(form)];
  word.doing.store(uint32_t(Doing::kNothing),
                   std::memory_order_relaxed);  // under the lock, which a waiter takes afterwards
  ::syscall(SYS_futex, &word.doing, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Register::wait_for_change(const Entry& entry, Form form, uint32_t seen, uint32_t timeout_ms) const {
  const std::atomic<uint32_t>& word = entry.words[index_of(form)].doing;
  const timespec time = {timeout_ms / 1000, long(timeout_ms % 1000) * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
  return word.load(std::memory_order_relaxed) != seen;
}

}  // namespace maru::adapters
