// The options of one policy, from text. The first mistake is kept, and finish() reports it.
#pragma once

#include "daemon/policy/policies.h"
#include "libmaru/base/result.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maru::daemon {

class OptionReader {
 public:
  // Both outlive the reader.
  OptionReader(std::string_view policy, const PolicyOptions& options) : policy_(policy), options_(&options) {}

  // Each gives the value, or `fallback` if the option is not set or wrong. Limits are inclusive.
  double number(std::string_view name, double fallback, double min, double max);
  uint64_t whole_number(std::string_view name, uint64_t fallback, uint64_t min, uint64_t max);
  bool flag(std::string_view name, bool fallback);

  // After all options were asked for: EINVAL for a wrong value, an option that the policy did not ask for, or one given
  // twice.
  Result<void> finish();
  // EINVAL with this mistake, unless there was one before.
  void complain(std::string problem);

 private:
  const std::string* find(std::string_view name);
  void complain_of(std::string_view name, std::string_view value, const std::string& expected);

  std::string_view policy_;
  const PolicyOptions* options_;
  std::vector<std::string_view> asked_;
  std::optional<std::string> problem_;
};

}  // namespace maru::daemon
