#include "daemon/tools/provision/apply.h"

#include <algorithm>
#include <set>

namespace maru::daemon::provision {
namespace {

// The name that a step made for a table. Later steps of this table, and of tables that name it, need it.
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

// The names that a step touched, whether it is done or half done. Steps that share a name count as depending on each other.
struct Touched {
  std::set<std::string> names;

  void add(const Step& step, const std::string& name) {
    for (const std::string& one : {step.target, step.region, name})
      if (!one.empty()) names.insert(one);
    names.insert("table " + step.wish);
  }
  bool has_any_of(const Touched& other) const {
    return std::any_of(names.begin(), names.end(), [&](const auto& one) { return other.names.contains(one); });
  }
};

// `left` names the things that the failed step could not put back.
void undo(ApplyOutcome& outcome, Touched left, Executor& executor, const Onlooker& onlooker) {
  for (size_t i = outcome.done.size(); i-- > 0;) {
    const Done last = outcome.done[i];
    Touched touched;
    touched.add(last.step, last.name);
    if (left.has_any_of(touched)) {
      outcome.left.push_back(step_text(last.step) + ": what is left may lie on it");
      left.add(last.step, last.name);
      continue;
    }
    onlooker.say("undoing: " + step_text(last.step));
    const auto undone = executor.undo(last.step, last.name);
    const std::string now = undone ? *undone : undone.error().there;
    const bool is_removal = last.step.kind == Step::Kind::kRemoveDevice;
    if (is_removal && !now.empty()) outcome.put_back.push_back({last.step, now});
    // A device under a new name is a different device for the earlier steps, which name devices, and for its users.
    const bool is_renamed = is_removal && !now.empty() && now != last.step.target;
    if (undone && !is_renamed) {
      outcome.done.erase(outcome.done.begin() + std::ptrdiff_t(i));
      outcome.undone.push_back(step_text(last.step) + (last.step.loses_content ? " (what it held is lost)" : ""));
    } else {
      outcome.left.push_back(step_text(last.step) + ": " + (is_renamed ? "it is " + now + " now, cleared" : "") +
                             (is_renamed && !undone ? "; " : "") + (undone ? "" : undone.error().text()));
      left.add(last.step, last.name);
    }
    onlooker.keep(outcome);
  }
}

}  // namespace

ApplyOutcome apply(const std::vector<Step>& steps, Executor& executor, const Onlooker& onlooker) {
  ApplyOutcome outcome;
  Touched left;
  for (size_t number = 0; number < steps.size(); ++number) {
    const Step step = resolve(steps[number], outcome.done);
    outcome.failure = onlooker.why_stop();
    if (outcome.failure.empty()) {
      onlooker.say(std::to_string(number + 1) + "/" + std::to_string(steps.size()) + " " + step_text(step));
      auto name = executor.run(step);
      if (name) {
        outcome.done.push_back({step, *name});
        onlooker.keep(outcome);
        continue;
      }
      outcome.failure = step_text(step) + ": " + name.error().error.text();
      if (!name.error().left.empty()) {
        outcome.left.push_back(step_text(step) + ": " + name.error().left);
        left.add(step, name.error().there);
      }
      if (const std::string& there = name.error().there; !there.empty()) {
        outcome.unfinished.push_back({step, there});
        onlooker.keep(outcome);
      }
    }
    undo(outcome, left, executor, onlooker);
    return outcome;
  }
  outcome.is_complete = true;
  return outcome;
}

}  // namespace maru::daemon::provision
