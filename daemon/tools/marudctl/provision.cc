// Discovery and provisioning of devices are another program's, which root runs: found beside this one in a build, else where it
// was installed.
#include "daemon/tools/marudctl/conversation.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <unistd.h>

namespace maru::marudctl {
namespace {

constexpr const char* kProgram = "/marud-provision";

std::string program_path() {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof(self));
  if (length > 0 && length < ssize_t(sizeof(self))) {
    const std::string path(self, size_t(length));
    const std::string beside = path.substr(0, path.find_last_of('/')) + kProgram;
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  }
  return std::string(MARU_LIBEXEC_DIR) + kProgram;
}

}  // namespace

int provision(const Arguments& arguments) {
  const std::string program = program_path();
  std::vector<std::string> words = {program};
  if (arguments.config) words.insert(words.end(), {"--config", *arguments.config});
  if (arguments.json) words.emplace_back("--json");
  if (arguments.force) words.emplace_back("--force");
  words.emplace_back("--");
  words.insert(words.end(), arguments.operands.begin(), arguments.operands.end());
  std::vector<char*> values;
  for (std::string& word : words) values.push_back(word.data());
  values.push_back(nullptr);
  ::execv(program.c_str(), values.data());
  return complain(kExitUnreachable, "provision: cannot run " + program + ": " + std::strerror(errno) +
                                        "; it is part of the package marud");
}

}  // namespace maru::marudctl
