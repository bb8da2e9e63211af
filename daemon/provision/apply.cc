#include "daemon/provision/apply.h"

namespace maru::daemon::provision {
namespace {

// The name that a step made for a table, where a later step of that table, or one that names it, needs it.
std::string made_by(const std::vector<Done>& done, const std::string& wish) {
  for (auto at = done.rbegin(); at != done.rend(); ++at)
    if (at->step.wish == wish) return at->name;
  return "";
}

Step resolve(Step step, const std::vector<Done>& done) {
  const std::string prefix = kCxlPrefix;
  if (step.target.empty()) {
    step.target = made_by(done, step.wish);
  } else if (step.target.starts_with(prefix)) {
    step.target = made_by(done, step.target.substr(prefix.size()));
  }
  return step;
}

void undo(Outcome& outcome, Executor& executor, const Onlooker& onlooker) {
  while (!outcome.done.empty()) {
    const Done last = outcome.done.back();
    outcome.done.pop_back();
    onlooker.say("undoing: " + step_text(last.step));
    if (auto undone = executor.undo(last.step, last.name); undone) {
      outcome.undone.push_back(step_text(last.step) + (last.step.loses_content ? " (what it held is lost)" : ""));
      onlooker.keep(outcome.done);
    } else {
      outcome.left.push_back(step_text(last.step) + ": " + undone.error().text());
      // What is below it is still needed by what is left.
      for (auto at = outcome.done.rbegin(); at != outcome.done.rend(); ++at)
        outcome.left.push_back(step_text(at->step));
      outcome.done.push_back(last);
      return;
    }
  }
}

}  // namespace

Outcome apply(const std::vector<Step>& steps, Executor& executor, const Onlooker& onlooker) {
  Outcome outcome;
  for (size_t number = 0; number < steps.size(); ++number) {
    const Step step = resolve(steps[number], outcome.done);
    outcome.failure = onlooker.why_stop();
    if (outcome.failure.empty()) {
      onlooker.say(std::to_string(number + 1) + "/" + std::to_string(steps.size()) + " " + step_text(step));
      auto name = executor.run(step);
      if (name) {
        outcome.done.push_back({step, *name});
        onlooker.keep(outcome.done);
        continue;
      }
      outcome.failure = step_text(step) + ": " + name.error().text();
    }
    undo(outcome, executor, onlooker);
    return outcome;
  }
  outcome.is_complete = true;
  return outcome;
}

}  // namespace maru::daemon::provision
