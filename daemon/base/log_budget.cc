#include "daemon/base/log_budget.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint64_t kRenewMs = 10'000;
constexpr size_t kUsersMax = 4096;  // more users than connect: of the others only the sum is known

}  // namespace

bool LogBudget::takes(std::optional<uid_t> user) {
  const auto found = uses_.find(user);
  Use* use = found != uses_.end() ? &found->second : uses_.size() < kUsersMax ? &uses_[user] : nullptr;
  if (all_.said < together_ && use && use->said < each_) {
    ++all_.said;
    ++use->said;
    return true;
  }
  ++all_.left_out;
  if (use) ++use->left_out;
  return false;
}

std::optional<std::string> LogBudget::renewed(uint64_t now_ms) {
  if (now_ms < due_ms_) return std::nullopt;
  due_ms_ = now_ms + kRenewMs;
  const auto uses = std::exchange(uses_, {});
  const Use all = std::exchange(all_, {});
  if (all.left_out == 0) return std::nullopt;
  const auto most = std::max_element(
      uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.second.left_out < b.second.left_out; });
  const std::string whose =
      most->first ? fmt::format(", {} of them of user {}", most->second.left_out, *most->first) : "";
  return fmt::format("and {} further {} were not logged{}", all.left_out, what_, whose);
}

}  // namespace maru::daemon
