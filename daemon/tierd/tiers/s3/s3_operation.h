// A request to S3, and the bytes of its object so far. They come from outside, in pieces and parts. No bytes make this class
// write beyond the memory of the request, and no load succeeds that does not verify.
#pragma once

#include "daemon/tierd/tiers/s3/s3_object.h"
#include "maru/tier.h"

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace maru::tierd {

struct S3Operation {
  maru_tier_request request = {};
  std::string key, name;
  std::chrono::steady_clock::time_point deadline;
  S3Head head;
  bool has_head = false;
  std::string head_bytes;  // of a store: to be sent; else received so far
  int result = 0;          // the first that was not 0
  // Of a load:
  size_t parts_open = 0;
  std::vector<uint64_t> arrived;  // bytes of each part
  uint64_t total_bytes = 0;       // of the object, as the answers have told it
  std::string etag;

  uint64_t head_bytes_wanted() const { return kS3FixedBytes + key.size(); }
  void fail(int code) {
    if (result == 0) result = code;
  }
  // All bytes of the head have come.
  void judge_head();
  // Bytes of the object from `at` on go where they belong. False: the operation has failed, and more is not wanted.
  bool place(uint64_t at, std::string_view bytes);
  // An answer about a part tells the object's size and its version, which another host may have replaced between two parts.
  void take_version(uint64_t object_bytes, const std::string& object_etag);
  // All parts have come.
  void prove();
};

}  // namespace maru::tierd
