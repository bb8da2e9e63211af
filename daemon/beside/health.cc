#include "daemon/beside/health.h"

#include "daemon/base/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace maru::daemon::beside {

bool Health::set(const std::string& part, const std::string& trouble, Weight weight) {
  const std::lock_guard lock(mutex_);
  Trouble& entry = troubles_[part];
  if (entry.text == trouble && entry.weight == weight) return false;
  entry = {trouble, weight};
  return true;
}

bool Health::clear(const std::string& part) {
  const std::lock_guard lock(mutex_);
  return troubles_.erase(part) > 0;
}

std::string Health::json() const {
  const char* status = http_status() == 503 ? "unhealthy" : "degraded";
  const std::lock_guard lock(mutex_);
  nlohmann::json reasons = nlohmann::json::array();
  for (const auto& [part, trouble] : troubles_) reasons.push_back(part + ": " + trouble.text);
  return json_text({{"status", troubles_.empty() ? "healthy" : status}, {"reasons", std::move(reasons)}});
}

int Health::http_status() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(troubles_.begin(), troubles_.end(),
                     [](const auto& entry) { return entry.second.weight == Weight::kUnhealthy; })
             ? 503
             : 200;
}

std::string Health::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [part, trouble] : troubles_) text += (text.empty() ? "" : "; ") + part + ": " + trouble.text;
  return text;
}

}  // namespace maru::daemon::beside
