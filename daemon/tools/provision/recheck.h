// The plan saw the machine a while ago. Before a step, what it is about is compared with what it shall be: as the plan saw it,
// or as the steps since then left it. Nothing is looked at or changed here, so that every difference can be tried.
#pragma once

#include "daemon/tools/provision/machine.h"
#include "daemon/tools/provision/plan.h"

#include <string>
#include <vector>

namespace maru::daemon::provision {

// What undoing a step does, as a step: `name` is what the step made or changed.
Step undoing(const Step& step, const std::string& name);

// The DAX devices whose content a step may end, by name.
std::vector<std::string> devices_of(const Step& step, const Machine& machine);

// "found dax0.0 open in marud (process 812), expected nobody", or nothing. Whatever `expected` says, nobody may have a device
// open.
std::string difference(const Step& step, const Machine& expected, const Machine& found);

// After a step, done or failed: what it was about and what it made is expected from now on as it is found; what it cleared is
// expected to be blank.
void expect_from_now_on(const Step& step, const std::string& name, const Machine& found, Machine& expected);

}  // namespace maru::daemon::provision
