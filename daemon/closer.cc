#include "daemon/closer.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <pthread.h>
#include <unistd.h>
#include <unordered_map>

namespace maru::daemon {
namespace {

constexpr size_t kStackBytes = 256u << 10;
constexpr std::chrono::seconds kIdle(10);  // and then a thread ends, all but the last one

}  // namespace

struct Closer::Work {
  struct Account {
    size_t closing = 0;  // in `ready`, or with a thread
    std::deque<int> waiting;
  };
  struct Ready {
    uint64_t account;
    int fd;
  };
  mutable std::mutex mutex;
  std::condition_variable has_ready;
  std::unordered_map<uint64_t, Account> accounts;  // that have something
  std::deque<Ready> ready;
  size_t threads = 0, idle = 0;
  bool is_over = false;

  // With the mutex. Where no thread is to be had now, those that are there do it later.
  static void add_thread(const std::shared_ptr<Work>& work) {
    pthread_attr_t attributes;
    if (::pthread_attr_init(&attributes) != 0) return;
    ::pthread_attr_setstacksize(&attributes, kStackBytes);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    auto* owned = new std::shared_ptr<Work>(work);
    const auto run = [](void* argument) -> void* {
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
    while (true) {
      ++idle;
      const bool has_work = has_ready.wait_for(lock, kIdle, [this] { return is_over || !ready.empty(); });
      --idle;
      if (is_over || (!has_work && threads > 1)) break;
      if (!has_work) continue;
      const Ready next = ready.front();
      ready.pop_front();
      lock.unlock();
      ::close(next.fd);
      lock.lock();
      Account& account = accounts[next.account];
      if (!account.waiting.empty()) {
        ready.push_back({next.account, account.waiting.front()});
        account.waiting.pop_front();
      } else if (--account.closing == 0) {
        accounts.erase(next.account);
      }
    }
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

void Closer::close(int fd, uint64_t account_number) {
  std::unique_lock lock(work_->mutex);
  Work::Account& account = work_->accounts[account_number];
  if (account.closing >= kThreadsPerAccount) {
    account.waiting.push_back(fd);
    return;
  }
  if (work_->idle <= work_->ready.size() && work_->threads < kThreadsMax) Work::add_thread(work_);
  if (work_->threads == 0) {  // there never was one, and nobody would close it
    if (account.closing == 0) work_->accounts.erase(account_number);
    lock.unlock();
    ::close(fd);
    return;
  }
  ++account.closing;
  work_->ready.push_back({account_number, fd});
  work_->has_ready.notify_one();
}

bool Closer::is_behind(uint64_t account_number) const {
  const std::lock_guard lock(work_->mutex);
  const auto found = work_->accounts.find(account_number);
  return found != work_->accounts.end() && found->second.waiting.size() > kWaitingMax;
}

}  // namespace maru::daemon
