// A tier whose test decides when and in which order requests are answered.
#pragma once

#include <string>
#include <vector>

namespace maru::test {

class ScriptedTier {
 public:
  virtual ~ScriptedTier() = default;
  // Requests without an answer, in their order: "lookup KEY", "load KEY", "store KEY", "delete KEY".
  virtual std::vector<std::string> waiting() const = 0;
  // Serves the first such request, and completes it; or completes it with an error. False: none waits.
  virtual bool answer(const std::string& request, int result = 0) = 0;
  virtual bool has(const std::string& key) const = 0;
  // Changes a byte of the entry's payload.
  virtual void spoil(const std::string& key) = 0;
  // Whether it accepts requests now.
  virtual void accept(bool accepts) = 0;
};

// With the option hang = KEY the tier needs no orders: it answers each request at once, and a load of this key never.
//
// The symbol "scripted_tier" of the plug-in: the tier that was opened with the option name = NAME; null: none.
using FindScriptedTier = ScriptedTier*(const char* name);

}  // namespace maru::test
