#include "daemon/tools/marudctl/top_screen.h"

#include "daemon/base/json_text.h"
#include "daemon/base/plain_text.h"
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace maru::marudctl {
namespace {

using nlohmann::json;

constexpr size_t kClientRowsMin = 5;  // however many pools there are

double real(const json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_number() ? found->get<double>() : 0;
}
uint64_t whole(const json& row, const char* name) { return uint64_t(real(row, name)); }
std::string shown_text(const json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_string() ? daemon::plain_text(found->get<std::string>()) : std::string();
}

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char out[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(out, sizeof(out), pattern, arguments);
  va_end(arguments);
  return out;
}

// Five characters for any rate: "0.4", "12", "3.1k", "250k", "1.2M".
std::string rate_text(double rate) {
  if (rate <= 0) return "0";
  if (rate < 9.95) return format("%.1f", rate);
  const char* const kUnits[] = {"", "k", "M", "G"};
  size_t unit = 0;
  while (rate >= 999.5 && unit + 1 < std::size(kUnits)) rate /= 1000, ++unit;
  return format(rate < 9.95 && unit > 0 ? "%.1f%s" : "%.0f%s", rate, kUnits[unit]);
}
std::string percent_text(const json& row, const char* name) {
  const auto found = row.find(name);
  return found == row.end() || !found->is_number() ? "-" : format("%.1f%%", found->get<double>());
}
// "85 us", "1.2 ms", "3.0 s"
std::string micros_text(const json& row, const char* name) {
  const auto found = row.find(name);
  if (found == row.end() || !found->is_number()) return "-";
  const double micros = found->get<double>();
  if (micros >= 1e6) return format("%.1f s", micros / 1e6);
  return micros >= 1e3 ? format("%.1f ms", micros / 1e3) : format(micros < 9.95 ? "%.1f us" : "%.0f us", micros);
}
std::string duration(uint64_t milliseconds) {
  const uint64_t seconds = milliseconds / 1000;
  if (seconds < 120) return format("%llu s", static_cast<unsigned long long>(seconds));
  if (seconds < 7200) return format("%llu min", static_cast<unsigned long long>(seconds / 60));
  return format("%llu h", static_cast<unsigned long long>(seconds / 3600));
}

// "[#####-----]"
std::string bar(double percent, size_t width) {
  const size_t full = std::min(width, size_t(percent * double(width) / 100 + 0.5));
  return "[" + std::string(full, '#') + std::string(width - full, '-') + "]";
}

double order_value(const json& client, TopOrder order) {
  switch (order) {
    case TopOrder::kAsked: return real(client, "asked_per_s");
    case TopOrder::kStores: return real(client, "stores_per_s");
    case TopOrder::kPins: return real(client, "pins");
    case TopOrder::kRegions: return real(client, "region_bytes");
    case TopOrder::kPid: return -real(client, "pid");  // the lowest first
  }
  return 0;
}

std::vector<const json*> chosen_clients(const json& figures, const TopView& view) {
  std::vector<const json*> rows;
  for (const json& client : rows_of(figures, "clients"))
    if (client.is_object() && (view.pool.empty() || shown_text(client, "pool") == view.pool)) rows.push_back(&client);
  std::stable_sort(rows.begin(), rows.end(), [&](const json* a, const json* b) {
    const double left = order_value(*a, view.order), right = order_value(*b, view.order);
    return view.is_reversed ? left < right : left > right;
  });
  return rows;
}

std::vector<std::string> help_lines() {
  return {"keys",
          "  up, down, k, j   choose a client          Enter  look into it, and back",
          "  s                sort by the next column  r      the other way round",
          "  p                the next pool alone, then all",
          "  + -              look more or less often  space  hold the picture",
          "  h ?              this text                q      end"};
}

// Parts beside each other, as many as fit, and the others on lines of their own: none is cut off without a word.
void add_parts(const TopView& view, const std::vector<std::string>& parts, std::vector<std::string>& lines) {
  bool is_first = true;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (is_first)
      lines.push_back(part);
    else if (lines.back().size() + 2 + part.size() <= view.width)
      lines.back() += "  " + part;
    else
      lines.push_back("  " + part);
    is_first = false;
  }
}

// Adds the lines that pools and clients share; `more` has the parts of one kind.
void add_rates(const json& row, const TopView& view, const std::string& start, const std::vector<std::string>& more,
               std::vector<std::string>& lines) {
  std::vector<std::string> parts = {
      start + "asked " + rate_text(real(row, "asked_per_s")) + "/s",
      "hits: prefix " + percent_text(row, "match_hit_percent") + " read " + percent_text(row, "retrieve_hit_percent"),
      "stored " + rate_text(real(row, "stores_per_s")) + "/s " + daemon::size_text(whole(row, "stored_bytes_per_s")) +
          "/s"};
  parts.insert(parts.end(), more.begin(), more.end());
  add_parts(view, parts, lines);
}

// Whether the pool needs an administrator's attention at once.
bool wants_attention(const json& pool) {
  return whole(pool, "pins_overdue") > 0 || real(pool, "refused_rents_per_s") > 0;
}

void add_pools(const std::vector<const json*>& pools, const TopView& view, std::vector<std::string>& lines) {
  for (const json* row : pools) {
    const json& pool = *row;
    const std::string name = shown_text(pool, "name");
    if (shown_text(pool, "condition") != "serving") {
      lines.push_back(format("%-12s  %s  %s", shortened(name, 12).c_str(), shown_text(pool, "condition").c_str(),
                             shown_text(pool, "reason").c_str()));
      continue;
    }
    const double used = real(pool, "in_use_percent");
    add_parts(
        view,
        {format("%-12s %s %5.1f%% of %s", shortened(name, 12).c_str(), bar(used, view.width < 80 ? 10 : 20).c_str(),
                used, daemon::size_text(whole(pool, "bytes")).c_str()),
         std::to_string(whole(pool, "blocks")) + " blocks", shown_text(pool, "policy"),
         pool.value("is_evicting", json(false)) == true ? "evicting" : ""},
        lines);
    const std::string memory =
        format("memory asked for %s/s, decided in %s, 99%% within %s", rate_text(real(pool, "rents_per_s")).c_str(),
               micros_text(pool, "rent_mean_us").c_str(), micros_text(pool, "rent_99_us").c_str());
    add_rates(pool, view, "  ", {"evicted " + rate_text(real(pool, "evicted_blocks_per_s")) + "/s", memory}, lines);
    if (wants_attention(pool))
      lines.push_back(format("  ATTENTION: %llu pins overdue, %s requests for memory refused a second",
                             static_cast<unsigned long long>(whole(pool, "pins_overdue")),
                             rate_text(real(pool, "refused_rents_per_s")).c_str()));
  }
}

// A line for each pool, of at most so many lines; the last one says how many pools are left out.
void add_pools_briefly(const std::vector<const json*>& pools, size_t lines_max, std::vector<std::string>& lines) {
  const size_t shown = pools.size() <= lines_max ? pools.size() : lines_max - 1;
  for (size_t i = 0; i < shown; ++i) {
    const json& pool = *pools[i];
    const std::string name = shortened(shown_text(pool, "name"), 12);
    if (shown_text(pool, "condition") != "serving") {
      lines.push_back(format("%-12s  %s  %s", name.c_str(), shown_text(pool, "condition").c_str(),
                             shown_text(pool, "reason").c_str()));
      continue;
    }
    const double used = real(pool, "in_use_percent");
    const char* hits =
        pool.value("match_hit_percent", json()).is_number() ? "match_hit_percent" : "retrieve_hit_percent";
    lines.push_back(format("%-12s %s %5.1f%% of %-8s asked %5s/s  hits %6s%s", name.c_str(), bar(used, 8).c_str(), used,
                           daemon::size_text(whole(pool, "bytes")).c_str(),
                           rate_text(real(pool, "asked_per_s")).c_str(), percent_text(pool, hits).c_str(),
                           wants_attention(pool) ? " ATTENTION" : ""));
  }
  if (shown < pools.size())
    lines.push_back("and " + std::to_string(pools.size() - shown) + " more pools (p: one at a time)");
}

// Storage below the pools that are shown.
void add_tiers(const json& figures, const TopView& view, std::vector<std::string>& lines) {
  for (const json& tier : rows_of(figures, "tiers")) {
    if (!tier.is_object() || (!view.pool.empty() && text(tier, "pool") != view.pool)) continue;
    const uint64_t capacity = whole(tier, "capacity_bytes"), physical = whole(tier, "physical_bytes");
    const std::string name = "tier " + shortened(text(tier, "name"), 16);
    const std::string size = capacity == 0 ? daemon::size_text(whole(tier, "entry_bytes"))
                                           : format("%.1f%% of %s", double(physical) * 100 / double(capacity),
                                                    daemon::size_text(capacity).c_str());
    add_parts(view,
              {name + "  " + size, std::to_string(whole(tier, "entries")) + " entries",
               "hits " + percent_text(tier, "hit_percent"),
               "loaded " + rate_text(real(tier, "loads_per_s")) + "/s " +
                   daemon::size_text(whole(tier, "loaded_bytes_per_s")) + "/s",
               "stored " + rate_text(real(tier, "stores_per_s")) + "/s " +
                   daemon::size_text(whole(tier, "stored_bytes_per_s")) + "/s",
               "waiting " + std::to_string(whole(tier, "waiting_blocks"))},
              lines);
    if (text(tier, "breaker") != "closed" || real(tier, "failures_per_s") > 0 || !text(tier, "trouble").empty())
      lines.push_back(format("  ATTENTION: breaker %s, %s failures a second %s", text(tier, "breaker").c_str(),
                             rate_text(real(tier, "failures_per_s")).c_str(), text(tier, "trouble").c_str()));
  }
}

TopClient identity_of(const json& client) {
  return {whole(client, "pid"), whole(client, "lane"), shown_text(client, "pool")};
}

// Selects the row of the chosen client. False: the client is gone, and the row's number stays as it was.
bool find_chosen(const TopView& view, TopScreen& screen) {
  screen.selected = screen.clients.empty() ? 0 : std::min(view.selected, screen.clients.size() - 1);
  if (!view.chosen) return true;
  const auto found = std::find(screen.clients.begin(), screen.clients.end(), *view.chosen);
  if (found == screen.clients.end()) return false;
  screen.selected = size_t(found - screen.clients.begin());
  return true;
}

// The pool's name, cut when a long name (up to 63 characters) leaves no room for the text behind it.
std::string pool_text(const std::string& pool, const TopView& view, size_t others) {
  return shortened(pool, std::max<size_t>(view.width > others ? view.width - others : 0, 12));
}

void add_client(const json& client, const TopView& view, std::vector<std::string>& lines) {
  constexpr size_t kOthers = 75;  // with the longest names and numbers
  lines.push_back(format("client: process %llu, %s, user %llu, pool %s, lane %llu, %s",
                         static_cast<unsigned long long>(whole(client, "pid")), shown_text(client, "command").c_str(),
                         static_cast<unsigned long long>(whole(client, "uid")),
                         pool_text(shown_text(client, "pool"), view, kOthers).c_str(),
                         static_cast<unsigned long long>(whole(client, "lane")), shown_text(client, "state").c_str()));
  const bool has_age = client.contains("oldest_pin_ms") && client["oldest_pin_ms"].is_number();
  add_parts(view,
            {format("pins %llu, %llu overdue, oldest %s", static_cast<unsigned long long>(whole(client, "pins")),
                    static_cast<unsigned long long>(whole(client, "pins_overdue")),
                    has_age ? duration(whole(client, "oldest_pin_ms")).c_str() : "-"),
             format("regions %llu, %s", static_cast<unsigned long long>(whole(client, "regions")),
                    daemon::size_text(whole(client, "region_bytes")).c_str()),
             "touches lost " + std::to_string(whole(client, "lost_touches"))},
            lines);
  add_rates(client, view, "",
            {"twice " + rate_text(real(client, "duplicates_per_s")) + "/s",
             "deleted " + rate_text(real(client, "deletes_per_s")) + "/s"},
            lines);
  lines.emplace_back();
  lines.emplace_back("counters since it attached");
  const json counters = client.value("counters", json::object());
  std::vector<std::string> shown;
  for (const auto& [name, value] : counters.items())
    shown.push_back(format("  %-18s %-16s", name.c_str(), daemon::json_text(value).c_str()));
  // Side by side, so that all of them fit below two pools.
  const size_t half = (shown.size() + 1) / 2;
  for (size_t i = 0; i < half; ++i) lines.push_back(shown[i] + (half + i < shown.size() ? shown[half + i] : ""));
}

void add_clients(const std::vector<const json*>& rows, const TopView& view, TopScreen& screen) {
  std::vector<std::string>& lines = screen.lines;
  lines.push_back(format("%7s %-12s %-8s %-9s %7s %6s %7s %6s %8s", "PID", "COMMAND", "POOL", "STATE", "ASKED/S",
                         "HITS", "STORE/S", "PINS", "RENTED"));
  if (rows.empty()) lines.emplace_back("no process is attached");
  // The selected one is always shown.
  const size_t room =
      view.height == 0 ? rows.size() : std::max<size_t>(view.height > lines.size() ? view.height - lines.size() : 0, 1);
  const size_t selected = screen.selected;
  const size_t first = selected >= room ? selected + 1 - room : 0;
  for (size_t i = first; i < rows.size() && i < first + room; ++i) {
    const json& client = *rows[i];
    if (i == selected) screen.selected_line = lines.size(), screen.has_selected = true;
    const std::string hits = percent_text(
        client, client.value("match_hit_percent", json()).is_number() ? "match_hit_percent" : "retrieve_hit_percent");
    lines.push_back(format(
        "%7llu %s %s %s %7s %6s %7s %6llu %8s", static_cast<unsigned long long>(whole(client, "pid")),
        column(shown_text(client, "command"), 12).c_str(), column(shortened(shown_text(client, "pool"), 8), 8).c_str(),
        column(shown_text(client, "state"), 9).c_str(), rate_text(real(client, "asked_per_s")).c_str(), hits.c_str(),
        rate_text(real(client, "stores_per_s")).c_str(), static_cast<unsigned long long>(whole(client, "pins")),
        daemon::size_text(whole(client, "region_bytes")).c_str()));
  }
}

}  // namespace

const char* name_of(TopOrder order) {
  switch (order) {
    case TopOrder::kAsked: return "asked";
    case TopOrder::kStores: return "stores";
    case TopOrder::kPins: return "pins";
    case TopOrder::kRegions: return "rented";
    case TopOrder::kPid: return "pid";
  }
  return "";
}

TopScreen draw_top(const json& figures, const TopView& view, const std::string& said) {
  TopScreen screen;
  const std::vector<const json*> rows = chosen_clients(figures, view);
  for (const json* row : rows) screen.clients.push_back(identity_of(*row));
  screen.has_chosen = find_chosen(view, screen);
  std::vector<std::string>& lines = screen.lines;
  lines.push_back(format("marud %s, process %llu, up %s, answers in %.1f ms, every %.1f s%s",
                         shown_text(figures, "version").c_str(), static_cast<unsigned long long>(whole(figures, "pid")),
                         duration(whole(figures, "uptime_ms")).c_str(), real(figures, "answer_us") / 1000,
                         real(figures, "interval_ms") / 1000, view.is_paused ? ", HELD" : ""));
  if (!said.empty()) lines.push_back(said);
  std::vector<const json*> pools;
  for (const json& pool : rows_of(figures, "pools"))
    if (pool.is_object() && (view.pool.empty() || shown_text(pool, "name") == view.pool)) pools.push_back(&pool);
  std::vector<std::string> in_full;
  add_pools(pools, view, in_full);
  add_tiers(figures, view, in_full);
  if (view.height == 0 || in_full.size() <= std::max<size_t>(view.height / 3, 4)) {
    lines.insert(lines.end(), in_full.begin(), in_full.end());
  } else {
    const size_t others = lines.size() + 3 + kClientRowsMin;  // an empty line, the title, the headings
    add_pools_briefly(pools, view.height > others ? view.height - others : 1, lines);
    add_tiers(figures, view, lines);
  }
  lines.emplace_back();
  if (view.has_help) {
    for (std::string& line : help_lines()) lines.push_back(std::move(line));
  } else if (view.is_looking && !screen.has_chosen) {
    lines.push_back(format("client: process %llu has left pool %s   (Enter: back)",
                           static_cast<unsigned long long>(view.chosen->pid),
                           pool_text(view.chosen->pool, view, 45).c_str()));
  } else if (view.is_looking && !rows.empty()) {
    add_client(*rows[screen.selected], view, lines);
  } else {
    constexpr size_t kOthers = 52;  // of the title, with the longest words
    const std::string whose = view.pool.empty() ? "all pools" : "pool " + pool_text(view.pool, view, kOthers);
    lines.push_back(format("%zu client%s of %s, by %s%s   (h: keys)", rows.size(), rows.size() == 1 ? "" : "s",
                           whose.c_str(), name_of(view.order), view.is_reversed ? ", reversed" : ""));
    add_clients(rows, view, screen);
  }
  // Clients choose parts of these lines, so escape characters go: no name may steer the terminal.
  for (std::string& line : lines) {
    line = daemon::plain_text(line);
    if (line.size() > view.width) line = column(line, view.width);
  }
  if (view.height != 0 && lines.size() > view.height) lines.resize(view.height);
  return screen;
}

}  // namespace maru::marudctl
