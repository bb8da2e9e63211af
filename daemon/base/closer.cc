#include "daemon/base/closer.h"

#include "daemon/base/thread_priority.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/wire/passed_descriptors.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <pthread.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>
#include <unordered_map>
#include <utility>

namespace maru::daemon {
namespace {

constexpr size_t kStackBytes = 256u << 10;
constexpr std::chrono::seconds kIdle(10);  // and then a thread ends, all but the last one
// Descriptors that one packet can bring, and how deep Linux lets sockets lie in each other's queues (SCM_MAX_FD,
// MAX_RECURSION_LEVEL).
constexpr size_t kDescriptorsOfLinuxMax = 253;
constexpr int kDepthMax = 5;
// More than a queue has room for.
constexpr int kPacketsMax = 1024;
constexpr int kBacklogMax = 1 << 16;  // the most that net.core.somaxconn may say; no client connects to a shut socket

void empty_out(int socket, int depth);

// Closes a descriptor that came along with a packet. Its maker may have it wait for unsent bytes only as long as that process
// keeps it, too, and then this is not the last close.
void close_passed(FileDescriptor passed, int depth) {
  const linger none = {};
  ::setsockopt(passed.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  ::shutdown(passed.get(), SHUT_RD);  // or it could be filled as fast as it is emptied
  empty_out(passed.get(), depth);
}

// Closes the connections that no process took from a listening socket, and the descriptors that lie unread in them. Once the
// socket was shut for reading, nothing more can come, and accepting does not block.
void empty_backlog(int listener, int depth) {
  for (int taken = 0; taken < kBacklogMax; ++taken) {
    FileDescriptor connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection.is_open()) return;
    ::shutdown(connection.get(), SHUT_RDWR);
    empty_out(connection.get(), depth);
  }
}

// Takes the unread packets from a Unix socket that was shut for reading, and closes the descriptors in them. The kernel would
// do so, and wait for sockets that linger. Blocks no longer than those closes. Other files have nothing to take. The kernel
// closes a descriptor that finds no room in this process.
void empty_out(int socket, int depth) {
  int domain = 0;
  socklen_t bytes = sizeof(domain);
  if (depth > kDepthMax || ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX)
    return;
  int listens = 0;
  bytes = sizeof(listens);
  if (::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0)
    return empty_backlog(socket, depth + 1);
  const int on = 1;  // every packet, also an empty one, then names its sender; the end does not
  ::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
  for (int packets = 0; packets < kPacketsMax; ++packets) {
    char ignored[4096];
    iovec part = {ignored, sizeof(ignored)};
    alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsOfLinuxMax * sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 || (got == 0 && message.msg_controllen == 0)) return;
    for (FileDescriptor& passed : wire::take_descriptors(message)) close_passed(std::move(passed), depth + 1);
  }
}

}  // namespace

struct Closer::Work : std::enable_shared_from_this<Closer::Work> {
  struct Item {
    int fd;
    Kind kind;
  };
  struct Account {
    size_t closing = 0;                        // in `ready`, or with a thread
    size_t connections_closing = 0;            // of them
    std::deque<int> descriptors, connections;  // that wait
  };
  struct Ready {
    uint64_t account;
    Item item;
  };
  mutable std::mutex mutex;
  std::condition_variable has_ready;
  std::unordered_map<uint64_t, Account> accounts;  // that have something
  std::deque<Ready> ready;
  std::set<uint64_t> held_back;  // accounts that could have more closing if others had less
  size_t closing = 0;            // of all accounts
  size_t threads = 0, idle = 0;
  bool is_over = false;

  // With the mutex. Whether the account may have one more closing now; where not, one of its own ends some time.
  bool has_room(const Account& account, Kind kind) const {
    if (account.closing == 0) return true;
    if (kind == Kind::kConnection && account.connections_closing >= kConnectionsPerAccount) return false;
    return account.closing < kThreadsPerAccount && closing < kThreadsMax - kThreadsForFirst;
  }
  // With the mutex. Whether something of the account waits that its own limits let begin.
  static bool is_held_by_others(const Account& account) {
    if (account.closing >= kThreadsPerAccount) return false;
    return !account.descriptors.empty() ||
           (!account.connections.empty() && account.connections_closing < kConnectionsPerAccount);
  }
  // With the mutex.
  void begin(uint64_t number, Account& account, Item item) {
    if (idle <= ready.size() && threads < kThreadsMax) add_thread(shared_from_this());
    ++account.closing;
    account.connections_closing += item.kind == Kind::kConnection;
    ++closing;
    ready.push_back({number, item});
    has_ready.notify_one();
  }
  // With the mutex: it is closed.
  void end(uint64_t number, Kind kind) {
    const auto found = accounts.find(number);
    Account& account = found->second;
    --closing;
    --account.closing;
    account.connections_closing -= kind == Kind::kConnection;
    take_up(number, account);
    if (account.closing == 0) accounts.erase(found);
    while (!held_back.empty() && closing < kThreadsMax - kThreadsForFirst) {
      const uint64_t other = *held_back.begin();
      held_back.erase(held_back.begin());
      if (const auto there = accounts.find(other); there != accounts.end()) take_up(other, there->second);
    }
  }
  // With the mutex.
  void take_up(uint64_t number, Account& account) {
    const auto take_from = [&](std::deque<int>& waiting, Kind kind) {
      while (!waiting.empty() && has_room(account, kind)) {
        const int fd = waiting.front();
        waiting.pop_front();
        begin(number, account, {fd, kind});
      }
    };
    take_from(account.descriptors, Kind::kAny);
    take_from(account.connections, Kind::kConnection);
    if (is_held_by_others(account)) held_back.insert(number);
  }

  // With the mutex. If no thread can be started now, the running threads do the work later.
  static void add_thread(const std::shared_ptr<Work>& work) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return;
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    auto* owned = new std::shared_ptr<Work>(work);
    const auto run = [](void* argument) -> void* {
      give_up_priority();
      const std::unique_ptr<std::shared_ptr<Work>> mine(static_cast<std::shared_ptr<Work>*>(argument));
      (*mine)->run();
      return nullptr;
    };
    pthread_t thread;
    if (::pthread_create(&thread, &attributes, run, owned) == 0)
      ++work->threads;
    else
      delete owned;
    ::pthread_attr_destroy(&attributes);
  }

  void run() {
    std::unique_lock lock(mutex);
    ++idle;
    while (true) {
      const bool has_work = has_ready.wait_for(lock, kIdle, [this] { return is_over || !ready.empty(); });
      if (is_over || (!has_work && threads > 1)) break;
      if (!has_work) continue;
      --idle;
      const Ready next = ready.front();
      ready.pop_front();
      lock.unlock();
      try {
        if (next.item.kind == Kind::kConnection) empty_out(next.item.fd, 0);
      } catch (const std::bad_alloc&) {  // the kernel closes the rest
      }
      ::close(next.item.fd);
      lock.lock();
      ++idle;
      end(next.account, next.item.kind);
    }
    --idle;
    --threads;
  }
};

Closer::Closer() : work_(std::make_shared<Work>()) {
  const std::lock_guard lock(work_->mutex);
  Work::add_thread(work_);
}

Closer::~Closer() {
  const std::lock_guard lock(work_->mutex);
  work_->is_over = true;
  work_->has_ready.notify_all();
}

void Closer::close(int fd, uint64_t number, Kind kind) {
  std::unique_lock lock(work_->mutex);
  Work::Account& account = work_->accounts[number];
  if (!work_->has_room(account, kind)) {
    (kind == Kind::kConnection ? account.connections : account.descriptors).push_back(fd);
    if (work_->is_held_by_others(account)) work_->held_back.insert(number);
    return;
  }
  if (work_->threads == 0) Work::add_thread(work_);
  if (work_->threads == 0) {  // there never was a thread, and none would close it
    if (account.closing == 0) work_->accounts.erase(number);
    lock.unlock();
    ::close(fd);
    return;
  }
  work_->begin(number, account, {fd, kind});
}

bool Closer::is_behind(uint64_t account_number) const {
  const std::lock_guard lock(work_->mutex);
  const auto found = work_->accounts.find(account_number);
  return found != work_->accounts.end() &&
         found->second.descriptors.size() + found->second.connections.size() > kWaitingMax;
}

size_t Closer::connections_waiting(uint64_t account_number) const {
  const std::lock_guard lock(work_->mutex);
  const auto found = work_->accounts.find(account_number);
  return found == work_->accounts.end() ? 0 : found->second.connections.size();
}

}  // namespace maru::daemon
