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
  // Before any of them is opened: the next marud goes on with what this one could not end.
  Result<void> write_down(const StateDirectory& state) const {
    for (const PoolSpec& spec : opening.specs)
      if (auto saved = state.save_added(spec.pool.name, opening.added_as); !saved)
        return failure(saved.error().code,
                       saved.error().doing + ": pool \"" + spec.pool.name + "\" would be forgotten when marud ends");
    return {};
  }
  void open_all(const StateDirectory& state) {
    if (!opening.added_as.empty())
      if (auto written = write_down(state); !written) {
        opening.error = written.error();
        return;
      }
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
