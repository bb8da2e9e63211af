// Runs a program with libmaru-record in front of libmaru: found in the build folder, else where it was installed.
#include "daemon/tools/marudctl/conversation.h"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace maru::marudctl {
namespace {

std::string library_path() {
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof(self));
  if (length > 0 && length < ssize_t(sizeof(self))) {
    const std::string path(self, size_t(length));
    const std::string built = path.substr(0, path.find_last_of('/')) + "/../libmaru/record/libmaru-record.so";
    if (::access(built.c_str(), R_OK) == 0) return built;
  }
  return std::string(MARU_LIB_DIR) + "/maru/libmaru-record.so";
}

}  // namespace

int record(const Arguments& arguments) {
  const std::string library = library_path();
  if (::access(library.c_str(), R_OK) != 0)
    return complain(kExitUnreachable, "record: cannot read " + library + ": " + std::strerror(errno) +
                                          "; it is part of the package marud");
  std::vector<std::string> words(arguments.operands.begin(), arguments.operands.end());
  const char* before = std::getenv("LD_PRELOAD");
  const std::string preload = library + (before != nullptr && *before != '\0' ? std::string(":") + before : "");
  // The program may change its folder before it makes the file.
  char folder[PATH_MAX];
  const bool is_relative = !words.front().starts_with('/');
  if (is_relative && ::getcwd(folder, sizeof(folder)) == nullptr)
    return complain(kExitUnreachable, std::string("record: cannot tell the current folder: ") + std::strerror(errno));
  const std::string path = is_relative ? std::string(folder) + "/" + words.front() : words.front();
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::setenv("MARU_RECORD", path.c_str(), 1);
  std::vector<char*> values;
  for (size_t i = 1; i < words.size(); ++i) values.push_back(words[i].data());
  values.push_back(nullptr);
  ::execvp(values.front(), values.data());
  return complain(kExitUnreachable, "record: cannot run " + words[1] + ": " + std::strerror(errno));
}

}  // namespace maru::marudctl
