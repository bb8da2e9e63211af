#include "daemon/tools/policy_sim/belady.h"
#include "tests/policy_sim/workloads.h"

#include <gtest/gtest.h>

namespace maru::policy_sim {
namespace {

TEST(Belady, GivesUpWhatIsUsedLast) {
  // With two pages, when 3 comes, 2 goes, since 1 is used sooner.
  const HitRatio ratio = simulate_belady(Workload(trace_of({{1}, {2}, {3}, {1}, {2}})), 2);
  EXPECT_EQ(ratio.references, 5u);
  EXPECT_EQ(ratio.block_hits, 2u);  // 1, and 2, for 3 went at once: nobody asks for it
}

TEST(Belady, CountsBlocksBehindAGapAsBlocksOnly) {
  const HitRatio ratio = simulate_belady(Workload(trace_of({{1, 2}, {1, 2}})), 1);
  EXPECT_EQ(ratio.block_hits, 1u);
  EXPECT_EQ(ratio.prefix_hits, 1u);
  const HitRatio all = simulate_belady(Workload(trace_of({{1, 2}, {1, 2}})), 2);
  EXPECT_EQ(all.prefix_hits, 2u);
}

// Published beside the trace's other figures, from another program.
TEST(Belady, ReachesTheKnownHitRatiosOfTheTrace) {
  const Workload workload(conversation());
  EXPECT_EQ(workload.blocks.size(), 182790u);
  EXPECT_NEAR(simulate_belady(workload, 913).prefix(), 0.1829, 0.0001);
}

TEST(Workload, ABlockIsItsIdAndAllBeforeIt) {
  const Result<trace::Trace> trace = trace::read_trace(data_file("bailian_sample.jsonl"), 0, trace::Times::kRequired);
  ASSERT_TRUE(trace) << trace.error().text();
  EXPECT_EQ(trace->requests[5].time_ms, 60061u);  // seconds in the file
  const Workload workload(*trace);
  EXPECT_EQ(workload.blocks.size(), 18u);
  EXPECT_EQ(workload.references, 29u);
  EXPECT_EQ(simulate_belady(workload, 18).prefix_hits, 11u);
  EXPECT_LT(workload.arrivals[2].tick, workload.arrivals[3].tick) << "requests of the same time keep their order";
}

}  // namespace
}  // namespace maru::policy_sim
