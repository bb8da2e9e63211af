#include "daemon/tools/policy_sim/report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace maru::policy_sim {
namespace {

[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

using Ratio = double (HitRatio::*)() const;

void add_row(std::string& out, const Row& row, Ratio ratio) {
  out += printed("  %-14s", row.policy.c_str());
  for (const Cell& cell : row.cells) out += printed(" %8.2f", 100 * (cell.ratio.*ratio)());
  out += '\n';
}

void add_table(std::string& out, const char* title, const Options& options, const Evaluation& evaluation, Ratio ratio) {
  out += printed("\n%s, in percent\n  %-14s", title, "size");
  for (const PoolSize& size : options.sizes) out += printed(" %8s", size.text().c_str());
  out += printed("\n  %-14s", "pages");
  for (const Cell& cell : evaluation.belady.cells)
    out += printed(" %8llu", static_cast<unsigned long long>(cell.pages));
  out += '\n';
  for (const Row& row : evaluation.rows) add_row(out, row, ratio);
  add_row(out, evaluation.belady, ratio);
}

nlohmann::json row_json(const Row& row) {
  nlohmann::json cells = nlohmann::json::array();
  for (const Cell& cell : row.cells)
    cells.push_back({{"pages", cell.pages},
                     {"prefix_hit_ratio", cell.ratio.prefix()},
                     {"block_hit_ratio", cell.ratio.block()},
                     {"evicted_blocks", cell.evicted},
                     {"not_stored_blocks", cell.not_stored}});
  return {{"policy", row.policy}, {"sizes", cells}};
}

}  // namespace

std::string text_report(const Options& options, const Workload& workload, const Evaluation& evaluation) {
  std::string out = printed("Trace     %zu requests, %llu blocks asked for, %zu distinct\n", workload.arrivals.size(),
                            static_cast<unsigned long long>(workload.references), workload.blocks.size());
  out += printed("No limit  a pool with room for all finds %.2f %%\n", 100 * evaluation.limitless.prefix());
  out += printed("Pool      blocks of one page, %u region%s, %u client%s\n", options.regions,
                 options.regions == 1 ? "" : "s", options.clients, options.clients == 1 ? "" : "s");
  if (options.high_watermark < 1)
    out += printed("          eviction between requests from %.6g %% in use down to %.6g %%\n",
                   100 * options.high_watermark, 100 * options.low_watermark);
  add_table(out, "Blocks found as a prefix / blocks asked for", options, evaluation, &HitRatio::prefix);
  const bool is_same = std::all_of(evaluation.rows.begin(), evaluation.rows.end(), [](const Row& row) {
    return std::all_of(row.cells.begin(), row.cells.end(),
                       [](const Cell& cell) { return cell.ratio.prefix_hits == cell.ratio.block_hits; });
  });
  add_table(out, "Blocks found / blocks asked for", options, evaluation, &HitRatio::block);
  if (is_same)
    out +=
        "\nThe two are the same but for Belady: marud keeps no block whose\n"
        "parent is gone, so every block that is there is found as part of a\n"
        "prefix.\n";
  return out;
}

nlohmann::json json_report(const Options& options, const Workload& workload, const Evaluation& evaluation) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : evaluation.rows) rows.push_back(row_json(row));
  return {{"trace",
           {{"path", options.trace_path},
            {"requests", workload.arrivals.size()},
            {"block_references", workload.references},
            {"distinct_blocks", workload.blocks.size()}}},
          {"regions", options.regions},
          {"clients", options.clients},
          {"high_watermark", options.high_watermark},
          {"low_watermark", options.low_watermark},
          {"limitless_hit_ratio", evaluation.limitless.prefix()},
          {"policies", rows},
          {"belady", row_json(evaluation.belady)}};
}

}  // namespace maru::policy_sim
