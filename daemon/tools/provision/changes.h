// A step on a real machine is several small changes. They are tried one after another; when one fails, those before it are
// reversed, the last one first, and what could not be reversed is said.
#pragma once

#include "daemon/tools/provision/apply.h"

#include <functional>
#include <string>
#include <vector>

namespace maru::daemon::provision {

class Changes {
 public:
  using Call = std::function<int()>;  // a negative errno: failed

  // Nothing is tried once a change failed. `back` reverses it when a later one fails; where that fails, too, `left` says what
  // remains ("dax0.0 is disabled").
  void attempt(const std::string& doing, const Call& change, const std::string& left = "", const Call& back = {});
  // What the change that fails left behind itself.
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
