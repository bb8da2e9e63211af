// What the rows of adapters share.
#pragma once

#include "tests/bench/marud_process.h"
#include "tests/support/adapter_folder.h"

#include <maru/adapters.hpp>
#include <optional>
#include <stdexcept>

namespace maru::bench {

template <typename T>
T must_have(AdapterAnswer<T> answer, const char* what) {
  if (!answer.ok())
    throw std::runtime_error(std::string(what) + ": " + std::string(answer.reason()) + " (" +
                             std::to_string(answer.error()) + ")");
  if constexpr (!std::is_void_v<T>) return std::move(*answer);
}

// The clock of a register that a row moves.
struct AdapterClock {
  uint64_t ms = 1'000'000;
  static uint64_t now(void* context) { return static_cast<AdapterClock*>(context)->ms; }
};

// `path` must outlive the result.
inline maru_adapters_options adapters_options_at(const std::string& path, AdapterClock* clock = nullptr) {
  maru_adapters_options options = {};
  options.size = sizeof(options);
  options.register_path = path.c_str();
  options.hot_bytes_max = options.warm_bytes_max = 1ull << 40;
  if (clock != nullptr) options.now_ms = AdapterClock::now, options.now_context = clock;
  return options;
}

}  // namespace maru::bench
