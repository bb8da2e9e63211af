#include "daemon/tools/provision/guarded_executor.h"

#include "daemon/tools/provision/recheck.h"

#include <cerrno>

namespace maru::daemon::provision {

Result<void> GuardedExecutor::look_again(const Step& step) {
  std::vector<FileDescriptor> locks;  // let go of at the end
  for (const std::string& device : devices_of(step, expected_)) {
    auto lock = eyes_.lock_device(device);
    if (!lock) return tl::unexpected<Error>(lock.error());
    locks.push_back(std::move(*lock));
  }
  const auto found = eyes_.read_machine();
  if (!found) return tl::unexpected<Error>(found.error());
  if (const std::string text = difference(step, expected_, *found); !text.empty())
    return failure(ESTALE, text + " since the plan was made; look at a new plan, and apply that");
  return {};
}

void GuardedExecutor::look_after(const Step& step, const std::string& name) {
  // When nothing can be read now, the next step finds a difference and is not begun.
  if (const auto found = eyes_.read_machine(); found) expect_from_now_on(step, name, *found, expected_);
}

StepResult GuardedExecutor::run(const Step& step) {
  if (const auto same = look_again(step); !same) return tl::unexpected<Error>(same.error());
  auto name = executor_.run(step);
  look_after(step, name ? *name : step.target);
  return name;
}

StepResult GuardedExecutor::undo(const Step& step, const std::string& name) {
  const Step back = undoing(step, name);
  if (const auto same = look_again(back); !same) return tl::unexpected<Error>(same.error());
  auto undone = executor_.undo(step, name);
  const std::string& now = undone ? *undone : undone.error().there;
  look_after(back, now.empty() ? step.target : now);
  return undone;
}

}  // namespace maru::daemon::provision
