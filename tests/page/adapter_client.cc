// A client with LoRA adapters, for tests in Python: attaches to the marud of $MARU_SOCKET, makes adapters in the folder of its
// argument, then does one thing for each line of its input and answers with one line, 0 or an errno.
//   load NAME         makes an adapter and registers it
//   use NAME [exact]  acquires it, in any form or as it is in the file, and lets go
//   forget            removes this user's register of the pool
#include "maru/adapters.hpp"
#include "tests/support/adapter_folder.h"

#include <cstdio>
#include <iostream>
#include <sstream>
#include <unistd.h>

namespace {

using maru::Adapters;

int act(maru_client* client, Adapters& adapters, const std::string& folder, const std::string& line) {
  std::istringstream words(line);
  std::string what, name, want;
  words >> what >> name >> want;
  if (what == "load") {
    maru::test::write_adapter(folder + "/" + name, maru::test::AdapterWish{});
    return adapters.load(name, folder + "/" + name).error();
  }
  if (what == "use") return adapters.acquire(name, want == "exact" ? MARU_ADAPTER_EXACT : MARU_ADAPTER_ANY).error();
  if (what != "forget") return EINVAL;
  maru_geometry geometry = {};
  geometry.size = sizeof(geometry);
  maru_get_geometry(client, &geometry);
  std::string file = "/dev/shm/maru-adapters." + std::to_string(geteuid()) + ".";
  for (const uint8_t byte : geometry.uuid) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    file += digits;
  }
  adapters = {};
  std::filesystem::remove(file);
  std::filesystem::remove(file + ".totals");
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  maru_attach_options options = {};
  options.size = sizeof(options);
  maru_client* client = nullptr;
  if (maru_attach(&options, &client) != 0) return 1;
  {
    auto opened = Adapters::open(client);
    if (!opened.ok()) return 1;
    Adapters adapters = std::move(*opened);
    for (std::string line; std::getline(std::cin, line);)
      std::cout << act(client, adapters, arguments[1], line) << std::endl;
  }
  maru_detach(client);
  return 0;
}
