// Takes the steps of a plan one after another. When a step fails, or a signal asks for an end between two steps, it undoes the
// earlier steps in reverse order. The outcome lists the done steps, the undone steps, and the steps that it could not undo.
// When it cannot undo a step, it keeps the earlier steps that this step depends on, and undoes the others.
#pragma once

#include "daemon/tools/provision/plan.h"
#include "libmaru/base/result.h"

#include <functional>
#include <string>
#include <vector>

namespace maru::daemon::provision {

// Why a step was not done. `left`: changes that the step could not put back; empty: the machine is as before the step. `there`:
// the name of the device that an undoing put back all the same, or of the thing that the step made and could not remove.
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
  // Returns the name of the thing that it made or changed.
  virtual StepResult run(const Step& step) = 0;
  // `name` is the result of run. Returns the name of the thing that is there now: the kernel may rename a device that comes
  // back.
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
  std::vector<std::string> left;    // steps that could not be undone or put back, and why
  std::vector<Done> put_back;       // kRemoveDevice: devices that are there again, by their new names
  std::vector<Done> unfinished;     // things that the failed step made and could not remove: they may not be cleared
};

// The caller's view of the steps.
struct Onlooker {
  // Before each step and each undoing.
  std::function<void(const std::string&)> say;
  // After each step and each undoing: the outcome so far. The caller writes it down: the process may be killed in the next
  // step.
  std::function<void(const ApplyOutcome&)> keep = [](const ApplyOutcome&) {};
  // Before each step: why it must not begin; empty: it may. Undoing does not ask.
  std::function<std::string()> why_stop = [] { return std::string(); };
};

ApplyOutcome apply(const std::vector<Step>& steps, Executor& executor, const Onlooker& onlooker);

}  // namespace maru::daemon::provision
