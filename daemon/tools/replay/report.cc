#include "daemon/tools/replay/report.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace maru::replay {
namespace {

__attribute__((format(printf, 2, 3))) void append(std::string& text, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  text += line;
}

double per(double amount, double whole) { return whole > 0 ? amount / whole : 0; }

std::string duration_text(uint64_t ns) {
  char text[32];
  if (ns < 10'000)
    std::snprintf(text, sizeof(text), "%.2f us", double(ns) / 1e3);
  else if (ns < 10'000'000)
    std::snprintf(text, sizeof(text), "%.1f us", double(ns) / 1e3);
  else
    std::snprintf(text, sizeof(text), "%.1f ms", double(ns) / 1e6);
  return text;
}

std::string bytes_text(uint64_t bytes) {
  char text[32];
  if (bytes >= 1ull << 30)
    std::snprintf(text, sizeof(text), "%.2f GiB", double(bytes) / double(1ull << 30));
  else if (bytes >= 1ull << 20)
    std::snprintf(text, sizeof(text), "%.1f MiB", double(bytes) / double(1ull << 20));
  else if (bytes % 1024 == 0)
    std::snprintf(text, sizeof(text), "%llu KiB", static_cast<unsigned long long>(bytes / 1024));
  else
    std::snprintf(text, sizeof(text), "%llu B", static_cast<unsigned long long>(bytes));
  return text;
}

unsigned long long wide(uint64_t value) { return value; }

}  // namespace

Report::Report(const Options& replay_options, const trace::Trace& replayed, const Board& board)
    : options(replay_options), trace(replayed) {
  uint64_t started_ns = UINT64_MAX, ended_ns = 0;
  for (uint32_t i = 0; i < options.clients; ++i) {
    const ClientBoard& client = board.clients[i];
    pool_bytes = client.pool_bytes.get();
    control_bytes = client.control_bytes.get();
    page_bytes = client.page_bytes.get();
    pages = client.pages.get();
    requests += client.requests.get();
    blocks += client.blocks.get();
    hit_blocks += client.hit_blocks.get();
    tier_blocks += client.tier_blocks.get();
    tier_failures += client.tier_failures.get();
    verified_bytes += client.verified_bytes.get();
    wrong_bytes += client.wrong_bytes.get() + client.checked_wrong_bytes.get();
    checked_blocks += client.checked_blocks.get();
    stored_blocks += client.stored_blocks.get();
    duplicate_blocks += client.duplicate_blocks.get();
    evicted_blocks += client.evicted_blocks.get();
    rents += client.rents.get();
    search_fallbacks += client.search_fallbacks.get();
    parent_gone += client.parent_gone.get();
    parent_gone_twice += client.parent_gone_twice.get();
    no_space_requests += client.no_space_requests.get();
    no_space_blocks += client.no_space_blocks.get();
    failed_stores += client.failed_stores.get();
    failed_store_errno = std::max(failed_store_errno, client.failed_store_errno.get());
    started_ns = std::min(started_ns, client.started_ns.get());
    ended_ns = std::max(ended_ns, client.ended_ns.get());
    for (uint32_t operation = 0; operation < kOperations; ++operation)
      latency[operation].add(client.latency[operation]);
  }
  seconds = ended_ns > started_ns ? double(ended_ns - started_ns) / 1e9 : 0;
  hit_ratio = per(double(hit_blocks), double(blocks));
  if (page_bytes != 0) {
    const uint64_t block_pages = (options.payload_bytes + page_bytes - 1) / page_bytes;
    pool_blocks = pages / block_pages;
    lru = simulate_lru(trace, std::max<uint64_t>(pool_blocks, 1));
  }
  limitless = simulate_lru(trace, 0);
}

std::string Report::text() const {
  std::string text;
  append(text, "\nScale\n");
  append(text, "  trace         %llu requests, %llu blocks asked for, %llu distinct\n", wide(trace.requests.size()),
         wide(trace.block_references), wide(trace.distinct_blocks));
  append(text, "  pool          %s, %s of it control region\n", bytes_text(pool_bytes).c_str(),
         bytes_text(control_bytes).c_str());
  append(text, "  pages         %llu of %s\n", wide(pages), bytes_text(page_bytes).c_str());
  append(text, "  room          for %llu blocks, %.1f %% of the distinct ones\n", wide(pool_blocks),
         100 * per(double(pool_blocks), double(trace.distinct_blocks)));
  append(text, "  payload       %s a block (in an engine it would be megabytes)\n",
         bytes_text(options.payload_bytes).c_str());
  append(text, "  clients       %u processes at once\n", options.clients);

  append(text, "\nHit ratio (blocks found as a prefix / blocks asked for)\n");
  append(text, "  this replay   %6.2f %%\n", 100 * hit_ratio);
  append(text, "  exact LRU     %6.2f %%   of %llu blocks, one request after the other\n", 100 * lru.ratio,
         wide(pool_blocks));
  append(text, "  no limit      %6.2f %%\n", 100 * limitless.ratio);

  if (!options.tier_path.empty())
    append(text, "  from the tier %6.2f %%   %llu blocks loaded, %llu requests without an answer\n",
           100 * per(double(tier_blocks), double(blocks)), wide(tier_blocks), wide(tier_failures));

  append(text, "\nRate\n");
  append(text, "  %.0f requests/s, %.0f blocks/s in %.2f s\n", per(double(requests), seconds),
         per(double(blocks), seconds), seconds);
  append(text, "  %s read and compared, every byte\n", bytes_text(verified_bytes).c_str());

  append(text, "\nLatency of a call, which serves all blocks of a request\n");
  append(text, "  %-11s %9s %10s %10s %10s %10s\n", "operation", "calls", "p50", "p90", "p99", "max");
  for (uint32_t operation = 0; operation < kOperations; ++operation) {
    const LatencyHistogram& histogram = latency[operation];
    append(text, "  %-11s %9llu %10s %10s %10s %10s\n", kOperationNames[operation], wide(histogram.count()),
           duration_text(histogram.quantile_ns(0.50)).c_str(), duration_text(histogram.quantile_ns(0.90)).c_str(),
           duration_text(histogram.quantile_ns(0.99)).c_str(), duration_text(histogram.max_ns()).c_str());
  }

  append(text, "\nBlocks\n");
  append(text, "  stored        %llu, and %llu that another client had stored first\n", wide(stored_blocks),
         wide(duplicate_blocks));
  append(text, "  evicted       %llu on request (an exact LRU: %llu)\n", wide(evicted_blocks), wide(lru.evicted));
  append(text, "  asked marud   %llu times for memory\n", wide(rents));
  append(text, "  parent gone   %llu stores tried again, %llu of them given up\n", wide(parent_gone),
         wide(parent_gone_twice));
  append(text, "  no space      %llu requests, %llu blocks not stored\n", wide(no_space_requests),
         wide(no_space_blocks));
  append(text, "  walked        %llu matches that search could not prove\n", wide(search_fallbacks));
  if (failed_stores != 0)
    append(text, "  failed        %llu stores, one with: %s\n", wide(failed_stores),
           failed_store_errno == EXFULL ? "no place in the registry at its key, as of one in 50,000 in a full pool"
                                        : std::strerror(int(failed_store_errno)));
  if (options.verify_afterwards)
    append(text, "  read again    %llu blocks that were still there afterwards\n", wide(checked_blocks));
  append(text, "  wrong bytes   %llu\n", wide(wrong_bytes));
  return text;
}

nlohmann::ordered_json Report::json() const {
  nlohmann::ordered_json result = {
      {"trace",
       {{"requests", trace.requests.size()},
        {"block_references", trace.block_references},
        {"distinct_blocks", trace.distinct_blocks}}},
      {"clients", options.clients},
      {"payload_bytes", options.payload_bytes},
      {"pool",
       {{"pages", pages},
        {"page_bytes", page_bytes},
        {"pool_bytes", pool_bytes},
        {"control_bytes", control_bytes},
        {"blocks", pool_blocks}}},
      {"requests", requests},
      {"blocks", blocks},
      {"hit_blocks", hit_blocks},
      {"tier_blocks", tier_blocks},
      {"tier_failures", tier_failures},
      {"hit_ratio", hit_ratio},
      {"lru_hit_ratio", lru.ratio},
      {"limitless_hit_ratio", limitless.ratio},
      {"seconds", seconds},
      {"requests_per_second", per(double(requests), seconds)},
      {"blocks_per_second", per(double(blocks), seconds)},
      {"stored_blocks", stored_blocks},
      {"duplicate_blocks", duplicate_blocks},
      {"evicted_blocks", evicted_blocks},
      {"lru_evicted_blocks", lru.evicted},
      {"rents", rents},
      {"parent_gone", parent_gone},
      {"parent_gone_twice", parent_gone_twice},
      {"no_space_requests", no_space_requests},
      {"no_space_blocks", no_space_blocks},
      {"search_fallbacks", search_fallbacks},
      {"failed_stores", failed_stores},
      {"failed_store_errno", failed_store_errno},
      {"verified_bytes", verified_bytes},
      {"checked_blocks", checked_blocks},
      {"wrong_bytes", wrong_bytes},
  };
  for (uint32_t operation = 0; operation < kOperations; ++operation) {
    const LatencyHistogram& histogram = latency[operation];
    result["latency_ns"][kOperationNames[operation]] = {{"calls", histogram.count()},
                                                        {"p50", histogram.quantile_ns(0.50)},
                                                        {"p90", histogram.quantile_ns(0.90)},
                                                        {"p99", histogram.quantile_ns(0.99)},
                                                        {"max", histogram.max_ns()}};
  }
  return result;
}

}  // namespace maru::replay
