// maru-policy-sim: plays a trace with each eviction policy, in pools of several sizes, and prints the hits.
#include "daemon/tools/policy_sim/evaluation.h"
#include "daemon/tools/policy_sim/options.h"
#include "daemon/tools/policy_sim/plot.h"
#include "daemon/tools/policy_sim/report.h"
#include "daemon/tools/policy_sim/workload.h"
#include "daemon/version.h"
#include "libmaru/base/standard_streams.h"

#include <cerrno>
#include <cstdio>
#include <fstream>

namespace maru::policy_sim {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

int fail(const Error& error, int status) {
  std::fprintf(stderr, "maru-policy-sim: %s\n", error.text().c_str());
  return status;
}

Result<void> write_plot(const std::string& path, const std::string& svg) {
  std::ofstream file(path, std::ios::binary);
  file << svg << std::flush;
  if (!file) return failure(errno ? errno : EIO, "write the plot " + path);
  return {};
}

int run(const Options& options) {
  const Result<trace::Trace> trace =
      trace::read_trace(options.trace_path, options.requests_max, trace::Times::kRequired);
  if (!trace) return fail(trace.error(), kFailed);
  if (trace->block_references == 0) return fail(Error{EINVAL, options.trace_path + " asks for no block"}, kFailed);
  const Workload workload(*trace);

  const Result<Evaluation> evaluation = evaluate(options, workload);
  if (!evaluation) return fail(evaluation.error(), kUsageError);
  if (options.json)
    std::printf("%s\n", json_report(options, workload, *evaluation).dump(2).c_str());
  else
    std::fputs(text_report(options, workload, *evaluation).c_str(), stdout);
  if (options.plot_path.empty()) return 0;
  const Result<void> written = write_plot(options.plot_path, draw_plot(options, workload, *evaluation));
  return written ? 0 : fail(written.error(), kFailed);
}

}  // namespace
}  // namespace maru::policy_sim

int main(int argc, char** argv) {
  maru::hold_standard_streams();
  using namespace maru::policy_sim;
  const maru::Result<Options> options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "maru-policy-sim: %s\nTry maru-policy-sim --help\n", options.error().doing.c_str());
    return kUsageError;
  }
  if (options->help) return std::fputs(usage().c_str(), stdout), 0;
  if (options->version) return std::printf("maru-policy-sim %s\n", maru::daemon::kVersionText), 0;
  return run(*options);
}
