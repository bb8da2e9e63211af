#include "daemon/tools/marudctl/top_screen.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace maru::marudctl {
namespace {

using nlohmann::json;

json client(uint64_t pid, double asked, uint64_t pins, const char* pool = "default") {
  return {{"pid", pid},   {"command", "engine"},      {"pool", pool},
          {"lane", pid},  {"state", "connected"},     {"asked_per_s", asked},
          {"pins", pins}, {"region_bytes", 1048576u}, {"counters", {{"stores", 4321u}}}};
}
json figures_with(json clients) {
  return {{"version", "0.1"},
          {"pid", 99u},
          {"uptime_ms", 61000u},
          {"pools",
           {{{"name", "default"},
             {"condition", "serving"},
             {"in_use_percent", 50.0},
             {"bytes", 1u << 30},
             {"policy", "lru"},
             {"pins_overdue", 2u}},
            {{"name", "other"}, {"condition", "fenced"}, {"reason", "its memory went away"}}}},
          {"clients", std::move(clients)}};
}
size_t line_with(const TopScreen& screen, const std::string& text) {
  const auto found = std::find_if(screen.lines.begin(), screen.lines.end(),
                                  [&](const std::string& line) { return line.find(text) != std::string::npos; });
  return size_t(found - screen.lines.begin());
}

TEST(TopScreen, ShowsPoolsAndWhatNeedsAttention) {
  const TopScreen screen = draw_top(figures_with(json::array()), {}, "marud does not answer");
  EXPECT_LT(line_with(screen, "[##########----------]"), screen.lines.size());
  EXPECT_LT(line_with(screen, "ATTENTION: 2 pins overdue"), screen.lines.size());
  EXPECT_LT(line_with(screen, "fenced  its memory went away"), screen.lines.size());
  EXPECT_EQ(line_with(screen, "marud does not answer"), 1u);
  EXPECT_LT(line_with(screen, "no process is attached"), screen.lines.size());
}

TEST(TopScreen, SaysHowLongRequestsForMemoryTook) {
  json figures = figures_with(json::array());
  EXPECT_LT(line_with(draw_top(figures, {}, ""), "memory asked for 0/s, decided in -, 99% within -"), 10u);
  figures["pools"][0].update({{"rents_per_s", 12.0}, {"rent_mean_us", 85.4}, {"rent_99_us", 1000.0}});
  EXPECT_LT(line_with(draw_top(figures, {}, ""), "memory asked for 12/s, decided in 85 us, 99% within 1.0 ms"), 10u);
}

TEST(TopScreen, SortsByWhatWasChosenAndBackwards) {
  const json figures = figures_with({client(11, 5, 1), client(22, 50, 0), client(33, 20, 9)});
  TopView view;
  TopScreen screen = draw_top(figures, view, "");
  EXPECT_LT(line_with(screen, "     22 "), line_with(screen, "     33 "));
  EXPECT_LT(line_with(screen, "     33 "), line_with(screen, "     11 "));
  view.order = TopOrder::kPins;
  screen = draw_top(figures, view, "");
  EXPECT_LT(line_with(screen, "     33 "), line_with(screen, "     11 "));
  EXPECT_LT(line_with(screen, "     11 "), line_with(screen, "     22 "));
  view.is_reversed = true;
  screen = draw_top(figures, view, "");
  EXPECT_LT(line_with(screen, "     22 "), line_with(screen, "     33 "));
}

TEST(TopScreen, FitsEightyColumnsAndTheHeight) {
  json clients = json::array();
  for (uint64_t i = 0; i < 100; ++i) clients.push_back(client(1'000'000 + i, double(i) * 1e6, i * 1000));
  TopView view;
  view.selected = 99;
  const TopScreen screen = draw_top(figures_with(clients), view, std::string(300, 'x'));
  EXPECT_EQ(screen.lines.size(), 24u);
  for (const std::string& line : screen.lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(screen.clients.size(), 100u);
  ASSERT_TRUE(screen.has_selected) << "the selected client scrolled out of the picture";
  EXPECT_NE(screen.lines[screen.selected_line].find("1000000"), std::string::npos)
      << "the last by rate is the first by number";
  view.width = 40;
  for (const std::string& line : draw_top(figures_with(clients), view, "").lines) EXPECT_LE(line.size(), 40u);
}

TEST(TopScreen, ManyPoolsLeaveRoomForClients) {
  json clients = json::array();
  for (uint64_t i = 0; i < 9; ++i) clients.push_back(client(100 + i, 1, 0, "p3"));
  json figures = figures_with(clients);
  const json pool = figures["pools"][0];
  for (uint64_t i = 0; i < 7; ++i) {
    figures["pools"].push_back(pool);
    figures["pools"].back()["name"] = "p" + std::to_string(i);
  }
  const auto shown = [](const TopScreen& screen, const char* text) {
    return std::count_if(screen.lines.begin(), screen.lines.end(),
                         [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  TopScreen screen = draw_top(figures, {}, "");
  EXPECT_EQ(shown(screen, "% of 1 GiB"), 8) << "a line each";
  EXPECT_EQ(shown(screen, "ATTENTION"), 8);
  EXPECT_GE(shown(screen, " engine "), 5);
  for (uint64_t i = 0; i < 40; ++i) figures["pools"].push_back(pool);
  screen = draw_top(figures, {}, "marud does not answer");
  EXPECT_EQ(shown(screen, "and 36 more pools"), 1);
  EXPECT_EQ(shown(screen, " engine "), 5);
  for (const std::string& line : screen.lines) EXPECT_LE(line.size(), 80u) << line;
  TopView one;
  one.pool = "p3";
  screen = draw_top(figures, one, "");
  EXPECT_EQ(shown(screen, "% of 1 GiB"), 1) << "the pool that was chosen, in full";
  EXPECT_EQ(shown(screen, "memory asked for"), 1);
  EXPECT_EQ(shown(screen, " engine "), 9);
}

TEST(TopScreen, OneClientIsOne) {
  EXPECT_LT(line_with(draw_top(figures_with({client(11, 5, 1)}), {}, ""), "1 client of all pools"), 24u);
}

TEST(TopScreen, LargeFiguresTakeAnotherLineAndAreNotCutOff) {
  json busy = client(1'000'000, 999e3, 1000);
  json figures = figures_with({busy});
  const json large = {{"in_use_percent", 100.0},    {"bytes", 1023ull << 30},        {"blocks", 523'776'000u},
                      {"policy", "isolated_lru"},   {"is_evicting", true},           {"asked_per_s", 999e3},
                      {"match_hit_percent", 100.0}, {"retrieve_hit_percent", 99.9},  {"stores_per_s", 999e3},
                      {"stored_bytes_per_s", 1e12}, {"evicted_blocks_per_s", 998e3}, {"duplicates_per_s", 997e3},
                      {"deletes_per_s", 996e3}};
  figures["pools"][0].update(large);
  figures["clients"][0].update(large);
  TopView view;
  for (const char* part : {"523776000 blocks", "isolated_lru", "evicting", "evicted 998k/s", "read 99.9%"})
    EXPECT_LT(line_with(draw_top(figures, view, ""), part), 10u) << part;
  view.is_looking = true;
  for (const char* part : {"twice 997k/s", "deleted 996k/s"})
    EXPECT_LT(line_with(draw_top(figures, view, ""), part), 24u) << part;
}

TEST(TopScreen, LooksIntoOneClientAndKeepsPoolsApart) {
  TopView view;
  view.pool = "other";
  const json figures = figures_with({client(11, 5, 1), client(22, 50, 0, "other")});
  EXPECT_EQ(draw_top(figures, view, "").clients.size(), 1u);
  view.is_looking = true;
  const TopScreen screen = draw_top(figures, view, "");
  EXPECT_LT(line_with(screen, "process 22"), screen.lines.size());
  EXPECT_LT(line_with(screen, "stores             4321"), screen.lines.size());
}

// The order changes from one look to the next, and somebody else's row is where that of the chosen one was.
TEST(TopScreen, WhoWasChosenIsFollowed) {
  TopView view;
  view.chosen = TopClient{11, 11, "default"};
  const json before = figures_with({client(11, 50, 1), client(22, 5, 1)});
  const json after = figures_with({client(11, 5, 1), client(22, 50, 1), client(33, 60, 1)});
  EXPECT_EQ(draw_top(before, view, "").selected, 0u);
  const TopScreen listed = draw_top(after, view, "");
  EXPECT_EQ(listed.selected, 2u);
  EXPECT_EQ(listed.selected_line, line_with(listed, "     11 "));
  view.is_looking = true;
  for (const json& figures : {before, after}) {
    const TopScreen screen = draw_top(figures, view, "");
    EXPECT_LT(line_with(screen, "client: process 11, "), screen.lines.size());
  }
  // The same process in another pool is another client.
  const TopScreen gone = draw_top(figures_with({client(11, 5, 1, "other"), client(22, 5, 1)}), view, "");
  EXPECT_FALSE(gone.has_chosen);
  EXPECT_LT(line_with(gone, "client: process 11 has left pool default"), gone.lines.size());
  EXPECT_EQ(line_with(gone, "process 22"), gone.lines.size());
  view.is_looking = false;
  EXPECT_LT(line_with(draw_top(figures_with({client(22, 5, 1)}), view, ""), "     22 "), 24u);
}

TEST(TopScreen, ALongNameOfAPoolLeavesRoomForTheRest) {
  const std::string pool(63, 'p');
  json one = client(4'194'304, 5, 1, pool.c_str());
  one.update({{"command", "a-command-of-15"}, {"uid", 4'294'967'294u}, {"lane", 4095u}, {"state", "unconnected"}});
  TopView view;
  view.pool = pool;
  view.order = TopOrder::kRegions;
  view.is_reversed = true;
  const json figures = figures_with({one});
  EXPECT_LT(line_with(draw_top(figures, view, ""), "by rented, reversed   (h: keys)"), 24u);
  view.is_looking = true;
  EXPECT_LT(line_with(draw_top(figures, view, ""), ", lane 4095, "), 24u);
  view.width = 200;
  EXPECT_LT(line_with(draw_top(figures, view, ""), "pool " + pool + ", lane 4095, unconnected"), 24u);
}

TEST(TopScreen, NothingThatAClientChoseSteersTheTerminal) {
  json hostile = client(11, 5, 1);
  hostile["command"] = "\033[2J\a\n\x9b\xC2\x9B";
  for (const std::string& line : draw_top(figures_with({hostile}), {}, "\033[2J\xC2\x9B").lines)
    for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << int(c);
}

TEST(TopScreen, ColumnsAreOfCharacters) {
  json local = client(11, 5, 1);
  local["command"] = "Mühlengräber-ß";
  const TopScreen screen = draw_top(figures_with({local, client(12, 5, 1)}), {}, "");
  EXPECT_LT(line_with(screen, "     11 Mühlengräber default  connected "), screen.lines.size());
  EXPECT_LT(line_with(screen, "     12 engine       default  connected "), screen.lines.size());
}

TEST(TopScreen, AnswersOfAnotherMarudDoNotEndIt) {
  for (const json& odd :
       {json::object(), json({{"pools", {{{"name", 5}}}}, {"clients", {{{"pid", "x"}}}}}), json({{"clients", "none"}})})
    EXPECT_FALSE(draw_top(odd, {}, "").lines.empty());
}

TEST(TopScreen, ShowsTiersOfThePoolsThatAreShown) {
  json figures = figures_with(json::array());
  figures["tiers"] = {{{"pool", "default"},
                       {"name", "nvme"},
                       {"entries", 12u},
                       {"physical_bytes", 1u << 29},
                       {"capacity_bytes", 1u << 30},
                       {"hit_percent", 93.1},
                       {"loads_per_s", 12.0},
                       {"loaded_bytes_per_s", double(1 << 20)},
                       {"breaker", "closed"},
                       {"trouble", ""},
                       {"waiting_blocks", 3u}}};
  TopView view;
  TopScreen screen = draw_top(figures, view, "");
  const size_t line = line_with(screen, "tier nvme  50.0% of 1 GiB");
  ASSERT_LT(line, screen.lines.size());
  EXPECT_LT(line_with(screen, "hits 93.1%"), screen.lines.size());
  EXPECT_LT(line_with(screen, "loaded 12/s 1 MiB/s"), screen.lines.size());
  EXPECT_EQ(line_with(screen, "breaker"), screen.lines.size());
  figures["tiers"][0]["breaker"] = "open";
  EXPECT_LT(line_with(draw_top(figures, view, ""), "ATTENTION: breaker open"), 24u);
  view.pool = "other";
  EXPECT_EQ(line_with(draw_top(figures, view, ""), "tier nvme"), draw_top(figures, view, "").lines.size());
}

}  // namespace
}  // namespace maru::marudctl
