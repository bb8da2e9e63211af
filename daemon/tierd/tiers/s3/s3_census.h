// Fills the catalogue of a bucket: sixteen lists side by side, one for each first digit of the names below the prefix, page
// after page. Then the heads of entries whose names do not tell their keys are read, some at a time.
//
// Threads: the client's.
#pragma once

#include "daemon/tierd/tiers/catalogue.h"
#include "daemon/tierd/tiers/s3/s3_client.h"
#include "daemon/tierd/tiers/s3/s3_object.h"

namespace maru::tierd {

// An entry as the catalogue counts it. `modified`: Unix seconds of the server's clock; 0: not known.
Catalogue::About about_s3_entry(std::string_view key, const S3Head& head, int64_t modified);

struct CensusWish {
  std::string prefix;
  bool lists = true;  // false: one request, which shows that the bucket is there
  std::chrono::milliseconds page_timeout{10'000};
  uint64_t objects_max = 0;  // that one round looks at, of any program; each page counts as one, too
};

class S3Census {
 public:
  using Outcome = S3Call::Outcome;

  S3Census(const CensusWish& wish, S3Client& client, Catalogue& catalogue)
      : wish_(wish), client_(client), catalogue_(catalogue) {}

  // Not while one is under way. `ended`: the first outcome that was no success, or a success; E2BIG: the bucket has more than
  // a round looks at, or than the catalogue has room for.
  void begin(std::function<void(const Outcome& outcome)> ended);
  bool is_under_way() const { return lists_open_ > 0; }

 private:
  static constexpr std::string_view kDigits = "0123456789abcdef";
  static constexpr size_t kHeadsAtATime = 8;

  void ask(std::string prefix, const std::string& token);
  void take_page(const std::string& prefix, const std::string& token, Outcome& outcome);
  bool take_objects(const std::vector<S3Listing::Object>& objects);
  void end_list(const Outcome& outcome);
  void read_next_head();
  void read_head(const std::string& name, uint32_t key_bytes);

  const CensusWish wish_;
  S3Client& client_;
  Catalogue& catalogue_;
  std::function<void(const Outcome&)> ended_;
  size_t lists_open_ = 0, heads_open_ = 0;
  uint64_t nameless_cursor_ = 0, objects_left_ = 0;
  Outcome first_failure_;
};

}  // namespace maru::tierd
