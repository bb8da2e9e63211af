// maru-tierd, from top to bottom.
#include "daemon/base/log.h"
#include "daemon/beside/program.h"
#include "daemon/tierd/controllers.h"

namespace maru::tierd {
namespace {

constexpr const char* kHelpText =
    "Usage: maru-tierd --config FILE [--check-config] [--log-level LEVEL]\n"
    "\n"
    "Keeps blocks of a pool of marud in storage below it: files, NVMe, Redis, S3.\n"
    "An ordinary client and follower of the pool.\n"
    "\n"
    "  --config FILE      the configuration; maru-tierd.toml(5) describes it\n"
    "  --check-config     print what is wrong with it, or OK\n"
    "  --log-level LEVEL  debug, info (default), warning or error\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 stopped as asked, or the configuration is good; 1 the\n"
    "configuration is bad, or maru-tierd cannot serve; 2 the command line is wrong.\n";

int run(int count, char** arguments) {
  Settings settings;
  maru::daemon::beside::Program program;
  program.name = "maru-tierd";
  program.help = kHelpText;
  program.read = [&settings](maru::daemon::ConfigTable& root, std::vector<maru::daemon::ConfigProblem>&) {
    settings = read_settings(root);
  };
  program.serve = [&settings](maru::daemon::beside::Service& service) -> Result<void> {
    auto controllers = Controllers::start(settings, service);
    if (!controllers) return tl::unexpected(controllers.error());
    // From here on blocks move, and clients may ask.
    maru::daemon::log_info("maru-tierd serves the pool {}", settings.pool);
    auto served = service.run([&] { return (*controllers)->is_alive(); });
    controllers->reset();
    return served;
  };
  return maru::daemon::beside::run_program(program, count, arguments);
}

}  // namespace
}  // namespace maru::tierd

int main(int count, char** arguments) { return maru::tierd::run(count, arguments); }
