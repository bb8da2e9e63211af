// PEFT's adapter_config.json: the description of a LoRA adapter.
#pragma once

#include "libmaru/adapters/reason.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru::adapters {

inline constexpr uint64_t kConfigBytesMax = 1u << 20;
inline constexpr uint32_t kRankMax = 1024;

struct PeftConfig {
  std::string base_model;           // base_model_name_or_path; may be empty
  uint32_t rank = 0;                // 1 to kRankMax
  double alpha = 0;                 // finite
  bool is_rank_stabilized = false;  // use_rslora: alpha / sqrt(rank) in place of alpha / rank
  std::string target_modules;       // the names, with commas between; or the pattern
  // Modules whose path is the text, or ends in "." and the text, have another rank or alpha.
  std::vector<std::pair<std::string, uint32_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;

  uint32_t rank_of(std::string_view module) const;
  double scaling_of(std::string_view module) const;
};

// Errors: -EBADMSG PEFT does not write such a file; -EOPNOTSUPP this library does not know such an adapter.
int parse_peft_config(std::string_view text, PeftConfig* ret_config, maru_adapters_reason* reason);

}  // namespace maru::adapters
