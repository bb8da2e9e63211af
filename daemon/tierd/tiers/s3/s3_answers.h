// The answers of an S3 server, taken apart: headers, an error, a page of a list. All of it comes from outside. Unexpected text
// is left out or refused, and every number is bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maru::tierd {

struct S3Headers {
  std::optional<uint64_t> content_length;
  // Of Content-Range "bytes 0-99/1234": 0, 99 and 1234.
  struct Range {
    uint64_t first, last, total;
  };
  std::optional<Range> range;
  std::string etag, region;         // region: x-amz-bucket-region
  uint32_t retry_after_s = 0;       // at most an hour; 0: not said
  std::optional<int64_t> date;      // Unix seconds, of the server's clock
  std::optional<int64_t> modified;  // likewise, when the object was written
};

// Takes one line, as it came; ignores unknown headers.
void take_header_line(std::string_view line, S3Headers& headers);

struct S3Error {
  std::string code;     // "NoSuchBucket"; empty: the body is no error of S3
  std::string message;  // for people, shortened, printable
  std::string region;   // the region that the server expects, where it says so
  std::string endpoint;
};

S3Error parse_s3_error(std::string_view xml);

struct S3Listing {
  struct Object {
    std::string name;
    uint64_t bytes;
    int64_t modified;  // Unix seconds, of the server's clock; 0: the list does not say
  };
  std::vector<Object> objects;
  std::string next;  // the token that continues; empty: this is the end
};

// A page of ListObjectsV2. Nothing: it is something else, or it was cut off.
std::optional<S3Listing> parse_s3_listing(std::string_view xml);

}  // namespace maru::tierd
