// The axis of sizes is logarithmic, since people choose sizes by factors. The legend lists the policies from best to worst in
// the middle of the range, in the order of the lines. Policies with the same line stand below one mark. The Okabe-Ito palette
// keeps eight colours apart for people with any kind of colour vision. Shapes of the marks repeat with another period.
#include "daemon/tools/policy_sim/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace maru::policy_sim {
namespace {

constexpr double kWidth = 880, kHeight = 540;
constexpr double kLeft = 70, kRight = 660, kTop = 60, kBottom = 470;  // of the area between the axes
constexpr double kLegendStep = 20;
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#8a8a00", "#7a4ea3"};
constexpr const char* kBeladyColour = "#222222";

[[gnu::format(printf, 2, 3)]] void add(std::string& out, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  out += text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (uint8_t(c) >= 0x20)
      out += c;
  }
  return out;
}

struct Axes {
  double least_percent, most_percent, top_percent;

  double x(double percent) const {
    const double share = std::log(percent / least_percent) / std::log(most_percent / least_percent);
    return kLeft + (kRight - kLeft) * share;
  }
  double y(double percent) const { return kBottom - (kBottom - kTop) * percent / top_percent; }
};

double percent_of(const Cell& cell, const Workload& workload) {
  return 100 * double(cell.pages) / double(std::max<size_t>(1, workload.blocks.size()));
}

// A step that makes four to ten lines.
double step_for(double range) {
  for (const double step : {0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0})
    if (range / step <= 10) return step;
  return 20;
}

void add_axes(std::string& out, const Axes& axes, const Workload& workload, const Row& sizes) {
  const double step = step_for(axes.top_percent);
  for (double percent = 0; percent <= axes.top_percent + step / 100; percent += step) {
    const double y = axes.y(percent);
    add(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", kLeft, y, kRight, y);
    add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", kLeft - 8, y + 4, percent);
  }
  double last_x = -100;
  for (const Cell& cell : sizes.cells) {
    const double percent = percent_of(cell, workload), x = axes.x(percent);
    add(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#eeeeee\"/>\n", x, kTop, x, kBottom);
    if (x - last_x < 28) continue;  // the numbers would run into each other
    add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.2g</text>\n", x, kBottom + 20, percent);
    last_x = x;
  }
  add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#444444\"/>\n", kLeft,
      kTop, kRight - kLeft, kBottom - kTop);
  add(out,
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">Size of the pool, %% of the distinct blocks "
      "(logarithmic)</text>\n",
      (kLeft + kRight) / 2, kBottom + 46);
  add(out,
      "<text transform=\"translate(22 %.1f) rotate(-90)\" text-anchor=\"middle\">Blocks found as a prefix, %% of those "
      "asked for</text>\n",
      (kTop + kBottom) / 2);
}

void add_mark(std::string& out, size_t shape, double x, double y, const char* colour) {
  switch (shape % 3) {
    case 0: add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y, colour); break;
    case 1:
      add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"6.4\" height=\"6.4\" fill=\"%s\"/>\n", x - 3.2, y - 3.2, colour);
      break;
    default: add(out, "<path d=\"M%.1f %.1fl4.2 7.2h-8.4z\" fill=\"%s\"/>\n", x, y - 4.4, colour);
  }
}

struct Style {
  const char* colour;
  const char* dashes;  // empty: none
  size_t shape;
};

void add_line(std::string& out, const Row& row, const Style& style, const Axes& axes, const Workload& workload) {
  std::string points;
  for (const Cell& cell : row.cells)
    add(points, "%.1f,%.1f ", axes.x(percent_of(cell, workload)), axes.y(100 * cell.ratio.prefix()));
  add(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" stroke-dasharray=\"%s\" points=\"", style.colour,
      style.dashes);
  out += points + "\"/>\n";
  for (const Cell& cell : row.cells)
    add_mark(out, style.shape, axes.x(percent_of(cell, workload)), axes.y(100 * cell.ratio.prefix()), style.colour);
}

void add_name(std::string& out, size_t place, const std::string& name) {
  add(out, "<text x=\"%.1f\" y=\"%.1f\">%.100s</text>\n", kRight + 58, kTop + 14 + kLegendStep * double(place),
      escaped(name).c_str());
}

void add_legend(std::string& out, size_t place, const Style& style) {
  const double x = kRight + 20, y = kTop + 10 + kLegendStep * double(place);
  add(out,
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"1.8\" "
      "stroke-dasharray=\"%s\"/>\n",
      x, y, x + 30, y, style.colour, style.dashes);
  add_mark(out, style.shape, x + 15, y, style.colour);
}

// Policies that found the same at every size share a line.
struct Line {
  Row row;
  std::vector<std::string> names;
};

std::vector<Line> lines_of(const std::vector<Row>& rows) {
  std::vector<Line> lines;
  for (const Row& row : rows) {
    const auto is_same = [&](const Line& line) {
      return std::equal(row.cells.begin(), row.cells.end(), line.row.cells.begin(),
                        [](const Cell& a, const Cell& b) { return a.ratio.prefix_hits == b.ratio.prefix_hits; });
    };
    const auto same = std::find_if(lines.begin(), lines.end(), is_same);
    if (same == lines.end())
      lines.push_back({row, {row.policy}});
    else
      same->names.push_back(row.policy);
  }
  return lines;
}

}  // namespace

std::string draw_plot(const Options& options, const Workload& workload, const Evaluation& evaluation) {
  // Sorts by size: the command line may give sizes in any order.
  const auto sorted = [](Row row) {
    std::sort(row.cells.begin(), row.cells.end(), [](const Cell& a, const Cell& b) { return a.pages < b.pages; });
    return row;
  };
  const Row belady = sorted(evaluation.belady);
  std::vector<Row> rows;
  for (const Row& row : evaluation.rows) rows.push_back(sorted(row));

  double top = 1;
  for (const Cell& cell : belady.cells) top = std::max(top, 100 * cell.ratio.prefix());
  for (const Row& row : rows)
    for (const Cell& cell : row.cells) top = std::max(top, 100 * cell.ratio.prefix());
  const double step = step_for(top);
  const double least = percent_of(belady.cells.front(), workload), most = percent_of(belady.cells.back(), workload);
  const Axes axes = {most > least ? least : least / 2, most > least ? most : most * 2, std::ceil(top / step) * step};

  std::vector<Line> lines = lines_of(rows);
  const size_t middle = belady.cells.size() / 2;
  std::sort(lines.begin(), lines.end(), [&](const Line& a, const Line& b) {
    return a.row.cells[middle].ratio.prefix() > b.row.cells[middle].ratio.prefix();
  });

  std::string out;
  const double height = std::max(kHeight, kTop + kLegendStep * double(rows.size() + 3));
  add(out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n",
      kWidth, height, kWidth, height);
  out += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  const size_t slash = options.trace_path.rfind('/');
  add(out, "<text x=\"%.1f\" y=\"26\" font-size=\"16\">Eviction policies on %.80s</text>\n", kLeft,
      escaped(options.trace_path.substr(slash == std::string::npos ? 0 : slash + 1)).c_str());
  add(out,
      "<text x=\"%.1f\" y=\"46\" fill=\"#555555\">%zu requests, %zu distinct blocks, %u region%s, %u client%s</text>\n",
      kLeft, workload.arrivals.size(), workload.blocks.size(), options.regions, options.regions == 1 ? "" : "s",
      options.clients, options.clients == 1 ? "" : "s");
  add_axes(out, axes, workload, belady);
  const Style bound = {kBeladyColour, "2 3", 0};
  add_line(out, belady, bound, axes, workload);
  add_legend(out, 0, bound);
  add_name(out, 0, "Belady (sees ahead)");
  size_t place = 1;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Style style = {kColours[i % std::size(kColours)], i < std::size(kColours) ? "" : "7 3", i};
    add_line(out, lines[i].row, style, axes, workload);
    add_legend(out, place, style);
    for (const std::string& name : lines[i].names) add_name(out, place++, name);
  }
  return out + "</svg>\n";
}

}  // namespace maru::policy_sim
