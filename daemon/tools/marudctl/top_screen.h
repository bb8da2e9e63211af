// The picture of marudctl top: figures in, lines out. The terminal is top.cc's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace maru::marudctl {

enum class TopOrder : unsigned char { kAsked, kStores, kPins, kRegions, kPid };
inline constexpr size_t kTopOrders = 5;

// A client, wherever its row is.
struct TopClient {
  uint64_t pid = 0;
  uint64_t lane = 0;
  std::string pool;
  bool operator==(const TopClient&) const = default;
};

// The choices of the person in front of it.
struct TopView {
  size_t width = 80, height = 24;  // 0 lines: as many as there are
  TopOrder order = TopOrder::kAsked;
  bool is_reversed = false;
  bool is_paused = false;
  bool has_help = false;
  std::string pool;             // only this one and its clients; empty: all
  bool is_of_one_pool = false;  // marud is asked for that one alone, so there is no other to go to
  size_t selected = 0;          // row of the clients, as long as none is chosen
  bool is_looking = false;      // into the selected client
  // Followed wherever its row goes: from one look to the next the order changes. No client, until a key chooses one.
  std::optional<TopClient> chosen = std::nullopt;
};

struct TopScreen {
  std::vector<std::string> lines;  // none wider than the view, no escape sequences
  size_t selected_line = 0;        // the line of the selected client; no line when there is no client
  bool has_selected = false;
  std::vector<TopClient> clients;  // a row each, shown or not
  size_t selected = 0;             // of them
  bool has_chosen = true;          // or the client that was chosen is gone; also when none was
};

// `figures`: the result of changes() (sample.h); `said`: the last error, empty when there was none.
TopScreen draw_top(const nlohmann::json& figures, const TopView& view, const std::string& said);

const char* name_of(TopOrder order);

}  // namespace maru::marudctl
