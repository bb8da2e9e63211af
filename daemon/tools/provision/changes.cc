#include "daemon/tools/provision/changes.h"

#include <cerrno>

namespace maru::daemon::provision {

void Changes::attempt(const std::string& doing, const Call& change, const std::string& left, const Call& back) {
  if (!is_good()) return;
  if (const int wrong = change(); wrong < 0)
    error_ = {-wrong, doing};
  else if (back)
    reversals_.push_back({left, back});
}

void Changes::leave(const std::string& left) { left_ += (left_.empty() ? "" : "; ") + left; }

StepResult Changes::finish(const std::string& name) {
  if (is_good()) return name;
  // When one change cannot be reversed, the changes before it are still reversed.
  for (; !reversals_.empty(); reversals_.pop_back())
    if (reversals_.back().back() < 0) leave(reversals_.back().left);
  return tl::unexpected<StepError>({error_, left_});
}

int code_of(const StepResult& result) { return result ? 0 : -result.error().error.code; }
int code_of(const Result<void>& result) { return result ? 0 : -result.error().code; }

}  // namespace maru::daemon::provision
