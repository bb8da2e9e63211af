// Does the steps of a plan one after another. When one fails, or somebody asks for an end between two, what was done before is
// undone in reverse order, and the outcome says what was done, what was undone, and what could not be. Where something is left,
// the steps that it lies on are left with it, and the others are undone.
#pragma once

#include "daemon/tools/provision/plan.h"
#include "libmaru/base/result.h"

#include <functional>
#include <string>
#include <vector>

namespace maru::daemon::provision {

// Why a step was not done. `left`: what it changed and could not put back; empty: the machine is as it was before the step.
// `there`: the device that an undoing put back all the same, or what the step made and could not remove, by name.
struct StepError {
  Error error;
  std::string left, there;

  StepError(Error why, std::string remains = "", std::string name = "")
      : error(std::move(why)), left(std::move(remains)), there(std::move(name)) {}
  std::string text() const { return error.text() + (left.empty() ? "" : " (" + left + ")"); }
};
using StepResult = tl::expected<std::string, StepError>;

// Changes a machine.
class Executor {
 public:
  virtual ~Executor() = default;
  // Returns the name of what was made, or of what was changed.
  virtual StepResult run(const Step& step) = 0;
  // `name` is what run returned. Returns the name of what is there now: the kernel may give a device that was removed another.
  virtual StepResult undo(const Step& step, const std::string& name) = 0;
};

struct Done {
  Step step;
  std::string name;
};

struct ApplyOutcome {
  bool is_complete = false;
  std::vector<Done> done;           // and not undone
  std::string failure;              // of the step that failed, or why no further one was begun
  std::vector<std::string> undone;  // texts of steps
  std::vector<std::string> left;    // what could not be undone or put back, and why
  std::vector<Done> put_back;       // kRemoveDevice: what is there again, by its name of now
  std::vector<Done> unfinished;     // what the step that failed made and could not remove: it may not be cleared
};

// Who looks on.
struct Onlooker {
  // Before each step and each undoing.
  std::function<void(const std::string&)> say;
  // After each of them: what is done and put back by now. To be written down: the process may be killed in the next one.
  std::function<void(const ApplyOutcome&)> keep = [](const ApplyOutcome&) {};
  // Before each step: why it shall not be begun, or nothing. Undoing is not stopped.
  std::function<std::string()> why_stop = [] { return std::string(); };
};

ApplyOutcome apply(const std::vector<Step>& steps, Executor& executor, const Onlooker& onlooker);

}  // namespace maru::daemon::provision
