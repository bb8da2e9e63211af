// What a row is, how it is measured and how it is printed.
//
// A row asks one question. Its contestants (ours, the floor, the peers) take turns: every round takes one sample of
// each, so that a machine that slows down slows all of them. The medians of the rounds are reported.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace maru::bench {

enum class LimitOf { kNone, kValue, kRatio, kRatioAtLeast };

struct RowSpec {
  const char* name;
  const char* group;
  const char* question;
  const char* yardstick;
  const char* unit;
  double limit;
  LimitOf limit_of;
  double socket_factor;  // how many times faster than the fastest socket peer, 0: not asked
  double lmdb_factor;    // the same for LMDB
};

const std::vector<RowSpec>& row_table();

// A sample is nanoseconds per unit of the row (exists_two_processes: a ratio of throughputs).
struct Contestant {
  std::string name;  // "value", "floor" or "peer_NAME"; of several with one name the fastest median counts
  std::function<double()> sample;
};

struct Facts {
  uint64_t page_bytes = 0;
  uint64_t pool_bytes = 0;
  uint64_t keys = 0;
  bool huge_pages = false;
  std::string note;
  // Further numbers worth reading beside the value, measured outside the rounds or as a by-product.
  std::vector<std::pair<std::string, std::function<double()>>> extra;
};

struct Options {
  bool json = false;
  bool quick = false;
  bool list = false;
  bool peers = true;
  unsigned rounds = 0;         // 0: 7, or 5 when quick
  uint64_t cold_keys = 0;      // 0: 10 M, or 200 k when quick
  std::set<std::string> only;  // empty: all
  std::string marud;           // the executable
};

class Suite {
 public:
  explicit Suite(Options options);

  const Options& options() const { return options_; }
  bool quick() const { return options_.quick; }
  unsigned rounds() const { return options_.rounds; }
  bool wants(const std::string& row) const;
  bool wants_group(const std::string& group) const;
  // A sample of `full` operations, less when quick.
  uint64_t operations(uint64_t full) const { return options_.quick ? (full + 7) / 8 : full; }

  // Runs the rounds of a row and prints it.
  void measure(const std::string& row, const std::vector<Contestant>& contestants, const Facts& facts);
  // Says on standard error what is going on; nothing with --json.
  void progress(const std::string& text) const;
  // Remembers what this machine lacks; printed once at the end, never silently dropped.
  void lacks(const std::string& text);
  void finish();

 private:
  Options options_;
  std::vector<std::string> lacking_;
  std::vector<std::string> missed_;
  bool heading_printed_ = false;
};

// The groups of rows, one function each; it sets up what its rows share and measures those that are wanted.
void lookup_rows(Suite& suite, bool cold);
void store_rows(Suite& suite);
void block_rows(Suite& suite);
void allocation_rows(Suite& suite);
void copy_rows(Suite& suite);
void reslice_rows(Suite& suite);
void blend_rows(Suite& suite);
void blend_cold_row(Suite& suite);
void adapter_rows(Suite& suite);
void adapter_batch_rows(Suite& suite);
void eviction_rows(Suite& suite);
void policy_rows(Suite& suite);
void recovery_rows(Suite& suite);
void scaling_rows(Suite& suite);

}  // namespace maru::bench
