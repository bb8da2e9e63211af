// A step on a real machine is several small changes, tried one after another. When a change fails, the earlier changes are
// reversed, the last first. The error lists the changes that could not be reversed.
#pragma once

#include "daemon/tools/provision/apply.h"

#include <functional>
#include <string>
#include <vector>

namespace maru::daemon::provision {

class Changes {
 public:
  using Call = std::function<int()>;  // a negative errno: failed

  // Tries nothing once a change has failed. `back` reverses the change when a later change fails. When `back` fails, too, the
  // error has `left`, the remaining effect ("dax0.0 is disabled").
  void attempt(const std::string& doing, const Call& change, const std::string& left = "", const Call& back = {});
  // Notes an effect that the failed change itself left behind.
  void leave(const std::string& left);

  bool is_good() const { return error_.code == 0; }
  // `name`, or the failure, after everything was reversed.
  StepResult finish(const std::string& name);

 private:
  struct Reversal {
    std::string left;
    Call back;
  };
  Error error_{0, ""};
  std::vector<Reversal> reversals_;
  std::string left_;
};

// As a change among others.
int code_of(const StepResult& result);
int code_of(const Result<void>& result);

// The error for a device, namespace or region that is not there.
inline tl::unexpected<Error> absent(const std::string& name) { return failure(ENODEV, "find " + name); }

}  // namespace maru::daemon::provision
