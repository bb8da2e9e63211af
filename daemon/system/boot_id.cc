#include "daemon/system/boot_id.h"

#include <fstream>

namespace maru::daemon {

const std::string& current_boot_id() {
  // Never destroyed: a thread may still ask when marud ends (aside.h).
  static const auto& known = *new std::string([] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    file >> id;
    return id;
  }());
  return known;
}

void boot_words(std::string_view text, uint64_t (&ret_id)[2]) {
  size_t nibbles = 0;
  for (char c : text) {
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || nibbles >= 32) continue;
    ret_id[nibbles / 16] = ret_id[nibbles / 16] << 4 | uint64_t(value);
    ++nibbles;
  }
}

void current_boot_words(uint64_t (&ret_id)[2]) { boot_words(current_boot_id(), ret_id); }

}  // namespace maru::daemon
