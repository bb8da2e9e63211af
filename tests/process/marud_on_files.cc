// marud, except that files stand in for DAX devices: what it takes for /sys and /dev lies in the folder "dax" beside its
// configuration (tests/support/dax_stand_in.h).
#include "daemon/options.h"

#include <cstring>
#include <string>

int main(int count, char** arguments) {
  maru::daemon::DaxRules rules;
  for (int i = 1; i + 1 < count; ++i)
    if (std::strcmp(arguments[i], "--config") == 0) {
      const std::string config = arguments[i + 1];
      const std::string root = config.substr(0, config.find_last_of('/')) + "/dax";
      rules = {root + "/sys", root + "/dev", false};
    }
  return maru::daemon::run(count, arguments, rules);
}
