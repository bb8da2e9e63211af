#include "daemon/tools/policy_sim/evaluation.h"

#include "daemon/tools/policy_sim/belady.h"
#include "daemon/tools/policy_sim/pool_model.h"
#include "libmaru/base/check.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

namespace maru::policy_sim {
namespace {

Cell simulate(const Options& options, const Workload& workload, const std::string& name, uint64_t pages) {
  const auto found = options.policy_options.find(name);
  const daemon::PolicyOptions of_policy =
      found == options.policy_options.end() ? daemon::PolicyOptions{} : found->second;
  const Result<std::unique_ptr<Policy>> policy = daemon::make_policy(name, of_policy, options.policy_dir);
  MARU_CHECK(policy, "parse_options has made it once");
  PoolModel pool(workload, {pages, options.regions, options.clients, options.high_watermark, options.low_watermark},
                 **policy);
  Cell cell;
  cell.ratio = pool.replay();
  cell.pages = pool.pages();
  cell.evicted = pool.evicted();
  cell.not_stored = pool.not_stored();
  return cell;
}

}  // namespace

Result<Evaluation> evaluate(const Options& options, const Workload& workload) {
  std::vector<uint64_t> sizes;
  for (const PoolSize& size : options.sizes) {
    sizes.push_back(size.pages_of(workload.blocks.size()));
    if (sizes.back() < options.regions)
      return failure(EINVAL, "a pool of " + size.text() + " has " + std::to_string(sizes.back()) +
                                 " pages, too few for " + std::to_string(options.regions) +
                                 " regions: give a larger size or fewer regions");
  }

  Evaluation evaluation;
  evaluation.limitless = simulate_belady(workload, workload.blocks.size());
  evaluation.belady = {"belady", std::vector<Cell>(sizes.size())};
  for (const std::string& name : options.policies) evaluation.rows.push_back({name, std::vector<Cell>(sizes.size())});

  // Each thread takes the next cell; cells do not know of each other.
  const size_t cells = (evaluation.rows.size() + 1) * sizes.size();
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < cells; i = next.fetch_add(1)) {
      const size_t row = i / sizes.size(), column = i % sizes.size();
      if (row == evaluation.rows.size()) {
        const uint64_t pages = sizes[column] / options.regions * options.regions;
        evaluation.belady.cells[column] = {pages, simulate_belady(workload, pages), 0, 0};
      } else {
        evaluation.rows[row].cells[column] = simulate(options, workload, evaluation.rows[row].policy, sizes[column]);
      }
    }
  };
  const uint32_t jobs =
      options.jobs != 0 ? options.jobs : std::clamp(std::thread::hardware_concurrency(), 1u, kJobsMax);
  std::vector<std::jthread> threads;
  for (uint32_t i = 1; i < std::min<size_t>(jobs, cells); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  return evaluation;
}

}  // namespace maru::policy_sim
