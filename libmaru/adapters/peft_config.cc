#include "libmaru/adapters/peft_config.h"

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

namespace maru::adapters {
namespace {

using Json = nlohmann::json;

constexpr size_t kPatternsMax = 4096;
constexpr size_t kTargetModulesBytesMax = 4096;

// Not the contents of an array or object: each of its levels would take some of the stack, and a file may have any number.
std::string shown_value(const Json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  return shown(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

bool ends_in_module(std::string_view module, std::string_view name) {
  if (!module.ends_with(name)) return false;
  return module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
}

bool is_set(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && !found->is_null() && *found != false &&
         !((found->is_array() || found->is_object()) && found->empty());
}

// Refuses settings that change the computation in a way that the weights alone do not tell.
int refuse_other_kinds(const Json& config, maru_adapters_reason* reason) {
  static constexpr struct {
    const char* key;
    const char* what;
  } kKinds[] = {
      {"use_dora", "a magnitude beside the matrices"},
      {"fan_in_fan_out", "transposed weights of the base model"},
      {"modules_to_save", "whole modules of its own"},
      {"alora_invocation_tokens", "a computation that begins inside the prompt"},
      {"use_qalora", "grouped weights"},
      {"lora_bias", "biases"},
      {"layer_replication", "layers that the base model has once"},
      {"trainable_token_indices", "embeddings of its own"},
      {"target_parameters", "matrices of parameters that belong to no module"},
  };
  for (const auto& [key, what] : kKinds)
    if (is_set(config, key))
      return fail(reason, EOPNOTSUPP,
                  "adapter_config.json: %s is set, so the adapter has %s; merge it, or train without", key, what);
  const auto bias = config.find("bias");
  if (bias != config.end() && !bias->is_null() && *bias != "none")
    return fail(reason, EOPNOTSUPP, "adapter_config.json: bias is %s; expected \"none\"", shown_value(*bias).c_str());
  return 0;
}

bool is_rank(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() >= 1 && value.get<uint64_t>() <= kRankMax;
}
bool is_alpha(const Json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

int read_targets(const Json& config, PeftConfig& ret, maru_adapters_reason* reason) {
  const auto found = config.find("target_modules");
  if (found == config.end() || found->is_null()) return 0;
  if (found->is_string()) {
    ret.target_modules = found->get<std::string>();
  } else if (found->is_array()) {
    for (const Json& name : *found) {
      if (!name.is_string())
        return fail(reason, EBADMSG, "adapter_config.json: target_modules has an entry that is no text");
      ret.target_modules += (ret.target_modules.empty() ? "" : ",") + name.get<std::string>();
    }
  } else {
    return fail(reason, EBADMSG, "adapter_config.json: target_modules is neither a list nor a text");
  }
  if (ret.target_modules.size() > kTargetModulesBytesMax)
    return fail(reason, EBADMSG, "adapter_config.json: target_modules has more than %zu bytes", kTargetModulesBytesMax);
  return 0;
}

// rank_pattern and alpha_pattern. PEFT reads a key as a regular expression; the keys that it writes itself are paths.
template <typename Value, typename Valid>
int read_pattern(const Json& config, const char* key, const Valid& is_valid,
                 std::vector<std::pair<std::string, Value>>& ret, maru_adapters_reason* reason) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return 0;
  if (!found->is_object() || found->size() > kPatternsMax)
    return fail(reason, EBADMSG, "adapter_config.json: %s is no object of at most %zu entries", key, kPatternsMax);
  for (const auto& [name, value] : found->items()) {
    if (name.empty() || name.find_first_of("^$*+?()[]{}|\\") != std::string::npos)
      return fail(reason, EOPNOTSUPP,
                  "adapter_config.json: %s names \"%s\"; expected a module's path without a pattern", key,
                  shown(name).c_str());
    if (!is_valid(value))
      return fail(reason, EBADMSG, "adapter_config.json: %s of \"%s\" is %s", key, shown(name).c_str(),
                  shown_value(value).c_str());
    ret.emplace_back(name, value.template get<Value>());
  }
  return 0;
}

}  // namespace

uint32_t PeftConfig::rank_of(std::string_view module) const {
  for (const auto& [name, other] : ranks)
    if (ends_in_module(module, name)) return other;
  return rank;
}

double PeftConfig::scaling_of(std::string_view module) const {
  double value = alpha;
  for (const auto& [name, other] : alphas)
    if (ends_in_module(module, name)) {
      value = other;
      break;
    }
  const double own_rank = rank_of(module);
  return value / (is_rank_stabilized ? std::sqrt(own_rank) : own_rank);
}

int parse_peft_config(std::string_view text, PeftConfig* ret_config, maru_adapters_reason* reason) {
  if (text.size() > kConfigBytesMax)
    return fail(reason, EBADMSG, "adapter_config.json has %zu bytes; at most %llu", text.size(), ull{kConfigBytesMax});
  const Json config = Json::parse(text.begin(), text.end(), nullptr, false);
  if (!config.is_object()) return fail(reason, EBADMSG, "adapter_config.json is no JSON object");
  PeftConfig result;
  const auto type = config.find("peft_type");
  if (type == config.end() || *type != "LORA")
    return fail(reason, EOPNOTSUPP, "adapter_config.json: peft_type is %s; expected \"LORA\"",
                type == config.end() ? "missing" : shown_value(*type).c_str());
  const auto rank = config.find("r");
  if (rank == config.end() || !is_rank(*rank))
    return fail(reason, EBADMSG, "adapter_config.json: r is missing, or not a rank of 1 to %u", kRankMax);
  result.rank = rank->get<uint32_t>();
  const auto alpha = config.find("lora_alpha");
  if (alpha == config.end() || !is_alpha(*alpha))
    return fail(reason, EBADMSG, "adapter_config.json: lora_alpha is missing, or no number");
  result.alpha = alpha->get<double>();
  if (const auto base = config.find("base_model_name_or_path"); base != config.end() && base->is_string())
    result.base_model = base->get<std::string>();
  if (const auto stabilized = config.find("use_rslora"); stabilized != config.end() && stabilized->is_boolean())
    result.is_rank_stabilized = stabilized->get<bool>();
  int status = refuse_other_kinds(config, reason);
  if (status == 0) status = read_targets(config, result, reason);
  if (status == 0) status = read_pattern(config, "rank_pattern", is_rank, result.ranks, reason);
  if (status == 0) status = read_pattern(config, "alpha_pattern", is_alpha, result.alphas, reason);
  if (status == 0) *ret_config = std::move(result);
  return status;
}

}  // namespace maru::adapters
