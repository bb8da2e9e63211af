#include "daemon/pool_openings.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <exception>
#include <map>
#include <system_error>
#include <thread>

namespace maru::daemon {

// `specs` never changes; the rest is the thread's until is_done.
struct PoolOpenings::Work {
  Opening opening;
  std::atomic<bool> is_done{false};
  std::thread thread;

  // An exception would end marud, and with it what other pools hold in memory.
  void run(const StateDirectory& state) {
    try {
      open_all(state);
    } catch (const std::exception& exception) {
      opening.error = Error{ENOMEM, std::string("open a pool: ") + exception.what()};
    }
    is_done.store(true);
  }
  void open_all(const StateDirectory& state) {
    for (const PoolSpec& spec : opening.specs) {
      std::map<std::string, FileDescriptor> none;
      const uint64_t now_ms = uint64_t(std::time(nullptr)) * 1000;
      auto hosted = opening.begins_anew ? HostedPool::start_anew(spec, state, now_ms)
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
  auto& work = works_.emplace_back(std::make_unique<Work>());
  work->opening = std::move(opening);
  try {
    work->thread = std::thread([work = work.get(), state] { work->run(state); });
  } catch (const std::system_error& error) {
    work->opening.error = Error{error.code().value(), "start a thread that opens the pool"};
    work->is_done.store(true);
  }
}

std::vector<PoolOpenings::Opening> PoolOpenings::take_ended() {
  std::vector<Opening> ended;
  std::erase_if(works_, [&](const auto& work) {
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
  for (const auto& work : works_)
    if (work->thread.joinable()) work->thread.join();
  return take_ended();
}

const PoolSpec* PoolOpenings::find(const std::string& name) const {
  const auto all = specs();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const PoolSpec* spec) { return spec->pool.name == name; });
  return found == all.end() ? nullptr : *found;
}

std::vector<const PoolSpec*> PoolOpenings::specs() const {
  std::vector<const PoolSpec*> all;
  for (const auto& work : works_)
    for (const PoolSpec& spec : work->opening.specs) all.push_back(&spec);
  return all;
}

}  // namespace maru::daemon
