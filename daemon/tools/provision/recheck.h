// The plan saw the machine a while ago. Before a step, the parts that it concerns are compared with the expected state: as the
// plan saw them, or as the steps since then left them. This code reads and changes no machine, so tests can try every
// difference.
#pragma once

#include "daemon/tools/provision/machine.h"
#include "daemon/tools/provision/plan.h"

#include <string>
#include <vector>

namespace maru::daemon::provision {

// The undoing of a step, as a step: `name` is the thing that the step made or changed.
Step undoing(const Step& step, const std::string& name);

// The DAX devices, by name, whose content a step may destroy.
std::vector<std::string> devices_of(const Step& step, const Machine& machine);

// "found dax0.0 open in marud (process 812), expected nobody", or empty. An open device is always a difference, even if
// `expected` says that it is open.
std::string difference(const Step& step, const Machine& expected, const Machine& found);

// After a step, done or failed: from now on its parts, and the thing that it made, are expected as they are now. Memory that it
// cleared is expected to be blank.
void expect_from_now_on(const Step& step, const std::string& name, const Machine& found, Machine& expected);

}  // namespace maru::daemon::provision
