#include "daemon/tierd/tiers/s3/s3_operation.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maru::tierd {

void S3Operation::judge_head() {
  switch (decode_s3_head(head_bytes, key, head)) {
    case HeadVerdict::kWhole: has_head = true; break;
    case HeadVerdict::kForeign: fail(-ENOENT); break;
    case HeadVerdict::kDamaged: fail(-EBADMSG); break;
  }
}

bool S3Operation::place(uint64_t at, std::string_view bytes) {
  const uint64_t head_end = head_bytes_wanted(), payload_end = head_end + request.payload_bytes;
  while (!bytes.empty() && result == 0) {
    size_t taken = bytes.size();
    if (at < head_end) {
      taken = std::min<uint64_t>(taken, head_end - at);
      head_bytes.append(bytes.substr(0, taken));
      if (at + taken == head_end) judge_head();
      if (has_head && head.payload_bytes != request.payload_bytes) fail(-ESTALE);
      if (has_head && head.attributes_bytes > request.attributes_bytes) fail(-ENOBUFS);
    } else if (at < payload_end) {
      taken = std::min<uint64_t>(taken, payload_end - at);
      std::memcpy(static_cast<char*>(request.payload) + (at - head_end), bytes.data(), taken);
    } else if (at - payload_end + taken <= request.attributes_bytes) {
      std::memcpy(static_cast<char*>(request.attributes) + (at - payload_end), bytes.data(), taken);
    } else {
      fail(-ESTALE);
    }
    at += taken;
    bytes.remove_prefix(taken);
  }
  return result == 0;
}

void S3Operation::take_version(uint64_t object_bytes, const std::string& object_etag) {
  if (total_bytes == 0) total_bytes = object_bytes, etag = object_etag;
  if (object_bytes != total_bytes || object_etag != etag) fail(-ESTALE);
}

void S3Operation::prove() {
  uint64_t all = 0;
  for (const uint64_t bytes : arrived) all += bytes;
  if (result != 0) return;
  if (!has_head || all != head.object_bytes() || total_bytes != all ||
      s3_checksum(request.payload, request.payload_bytes) != head.payload_checksum ||
      s3_checksum(request.attributes, head.attributes_bytes) != head.attributes_checksum)
    fail(-EBADMSG);
}

}  // namespace maru::tierd
