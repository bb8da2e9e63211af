#include "daemon/hosting/pool_openings.h"

#include "daemon/base/aside.h"
#include "daemon/base/log.h"
#include "daemon/base/thread_priority.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <exception>
#include <future>
#include <map>
#include <thread>

namespace maru::daemon {
namespace {

// For a thread that was told to end, at the end of marud. It may stand still at a disk that does not answer.
constexpr std::chrono::seconds kPatience(5);

// Before any of them is opened: the next marud goes on with the rest.
Result<void> write_down(const StateDirectory& state, const std::vector<std::string>& names, const std::string& text) {
  for (const std::string& name : names)
    if (auto saved = state.save_added(name, text); !saved)
      return failure(saved.error().code,
                     saved.error().doing + ": pool \"" + name + "\" would be forgotten when marud ends");
  return {};
}

}  // namespace

// `specs` never changes; the rest is the thread's from its start until is_done. It keeps this object as long as it lasts.
struct PoolOpenings::Work {
  Opening opening;
  Aside<Result<void>> written;  // that they are added: before the thread is started
  std::atomic<bool> is_done{false};
  std::promise<void> over;  // after is_done
  std::thread thread;

  // An exception would end marud, and with it the content of other pools in memory.
  void run(const StateDirectory& state) {
    try {
      open_all(state);
    } catch (const std::exception& exception) {
      opening.error = Error{ENOMEM, std::string("open a pool: ") + exception.what()};
    }
    is_done.store(true);
    over.set_value();
  }
  static void start(const std::shared_ptr<Work>& work, const StateDirectory& state) {
    try {
      work->thread = std::thread([work, state] {
        give_up_priority();
        work->run(state);
      });
    } catch (const std::exception&) {
      work->opening.error = Error{EAGAIN, "start a thread that opens the pool"};
      work->is_done.store(true);
    }
  }
  void open_all(const StateDirectory& state) {
    for (const PoolSpec& spec : opening.specs) {
      std::map<std::string, FileDescriptor> none;
      const uint64_t now_ms = uint64_t(std::time(nullptr)) * 1000;
      auto hosted = opening.record
                        ? HostedPool::start_on(std::move(opening.memory), *opening.record, spec, state, now_ms)
                    : opening.begins_anew ? HostedPool::start_anew(spec, state, now_ms)
                                          : HostedPool::start(spec, state, none, now_ms);
      if (!hosted) {
        opening.error = hosted.error();
        break;
      }
      opening.opened.push_back(std::move(*hosted));
    }
  }
};

PoolOpenings::PoolOpenings() = default;
PoolOpenings::~PoolOpenings() { end(); }

void PoolOpenings::begin(Opening opening, const StateDirectory& state) {
  works_.reserve(works_.size() + 1);
  auto work = std::make_shared<Work>();
  work->opening = std::move(opening);
  if (work->opening.added_as.empty()) {
    Work::start(work, state);
  } else {
    std::vector<std::string> names;
    for (const PoolSpec& spec : work->opening.specs) names.push_back(spec.pool.name);
    work->written.begin(
        [state, names = std::move(names), text = work->opening.added_as] { return write_down(state, names, text); },
        failure(ENOMEM, "write down which pools are added"));
  }
  works_.push_back(std::move(work));
}

std::vector<PoolOpenings::Opening> PoolOpenings::take_ended(const StateDirectory& state) {
  std::vector<Opening> ended;
  std::erase_if(works_, [&](const std::shared_ptr<Work>& work) {
    if (work->written.is_begun()) {
      const auto written = work->written.take();
      if (!written) return false;
      if (*written) {
        Work::start(work, state);
        return false;
      }
      work->opening.error = written->error();
      work->is_done.store(true);
    }
    if (!work->is_done.load()) return false;
    if (work->thread.joinable()) work->thread.join();
    ended.push_back(std::move(work->opening));
    return true;
  });
  return ended;
}

std::vector<PoolOpenings::Opening> PoolOpenings::end() {
  if (works_.empty()) return {};
  end_long_work();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<Opening> ended;
  for (const auto& work : works_) {
    if (!work->thread.joinable() || work->over.get_future().wait_until(deadline) == std::future_status::ready) {
      if (work->thread.joinable()) work->thread.join();
      ended.push_back(std::move(work->opening));
      continue;
    }
    work->thread.detach();
    for (const PoolSpec& spec : work->opening.specs)
      log_warning("pool \"{}\" is not open yet, and is cut off where it is: a disk or a device does not answer",
                  spec.pool.name);
  }
  works_.clear();
  return ended;
}

const PoolSpec* PoolOpenings::find(const std::string& name) const {
  const auto all = specs();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const PoolSpec* spec) { return spec->pool.name == name; });
  return found == all.end() ? nullptr : *found;
}

// `record` is there from the beginning, or never.
bool PoolOpenings::is_adopting(const std::string& name) const {
  return std::any_of(works_.begin(), works_.end(), [&](const auto& work) {
    return work->opening.record && work->opening.specs.front().pool.name == name;
  });
}

std::vector<const PoolSpec*> PoolOpenings::specs() const {
  std::vector<const PoolSpec*> all;
  for (const auto& work : works_)
    for (const PoolSpec& spec : work->opening.specs) all.push_back(&spec);
  return all;
}

}  // namespace maru::daemon
