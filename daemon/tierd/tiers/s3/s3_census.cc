#include "daemon/tierd/tiers/s3/s3_census.h"

#include "daemon/tierd/tiers/groups.h"

#include <cerrno>

namespace maru::tierd {

Catalogue::About about_s3_entry(std::string_view key, const S3Head& head, int64_t modified) {
  Catalogue::About about;
  about.group = group_of(key);
  about.entry_bytes = head.payload_bytes + head.attributes_bytes;
  about.physical_bytes = head.object_bytes();
  about.written = modified;
  about.has_details = true;
  about.note = head.note;
  about.attributes_bytes = head.attributes_bytes;
  return about;
}

void S3Census::begin(std::function<void(const Outcome&)> ended) {
  ended_ = std::move(ended);
  first_failure_ = {};
  objects_left_ = wish_.objects_max;
  if (!wish_.lists) {
    lists_open_ = 1;
    return ask(wish_.prefix, {});
  }
  catalogue_.begin_round();
  lists_open_ = kDigits.size();
  for (const char digit : kDigits) ask(wish_.prefix + digit, {});
}

void S3Census::ask(std::string prefix, const std::string& token) {
  S3Call call;
  call.verb = "GET";
  call.query = {{"list-type", "2"}, {"prefix", prefix}, {"max-keys", wish_.lists ? "1000" : "1"}};
  if (!token.empty()) call.query["continuation-token"] = token;
  call.deadline = S3Call::Clock::now() + wish_.page_timeout;
  call.done = [this, prefix = std::move(prefix), token](Outcome& outcome) { take_page(prefix, token, outcome); };
  client_.start(std::move(call));
}

void S3Census::take_page(const std::string& prefix, const std::string& token, Outcome& outcome) {
  if (outcome.result == -ENOENT) outcome.result = -ENODEV;  // of a bucket, with an error in a form of the server's own
  if (outcome.result != 0) return end_list(outcome);
  const auto page = parse_s3_listing(outcome.body);
  if (!page) {
    outcome.result = -EPROTO;
    outcome.is_refusal = true;
    outcome.trouble =
        "the server's answer is no list of objects in the second form (ListObjectsV2); expected a server of "
        "S3; correct endpoint";
    return end_list(outcome);
  }
  if (!page->next.empty() && page->next == token) {
    outcome.result = -EPROTO;
    outcome.trouble = "the server's list goes on where it began; expected another continuation token";
    return end_list(outcome);
  }
  if (wish_.lists && !take_objects(page->objects)) {
    outcome.result = -E2BIG;
    outcome.trouble = "the bucket has more objects below \"" + wish_.prefix +
                      "\" than list_memory has room for; expected " + std::to_string(wish_.objects_max) +
                      " at most; raise list_memory, set list = false, or have old objects ended by a lifecycle rule";
    return end_list(outcome);
  }
  if (!wish_.lists || page->next.empty()) return end_list(outcome);
  ask(prefix, page->next);
}

// False: there are too many.
bool S3Census::take_objects(const std::vector<S3Listing::Object>& objects) {
  if (objects.size() >= objects_left_) return false;
  objects_left_ -= objects.size() + 1;
  bool has_room = true;
  for (const S3Listing::Object& object : objects) {
    auto named = parse_s3_object_name(wish_.prefix, object.name);
    if (!named || object.bytes < kS3FixedBytes + named->key_bytes) continue;  // not of ours, or no entry
    Catalogue::About about;
    about.group = std::move(named->group);
    about.entry_bytes = object.bytes - kS3FixedBytes - named->key_bytes;
    about.physical_bytes = object.bytes;
    about.written = object.modified;
    has_room &= catalogue_.listed(object.name, about);
  }
  return has_room;
}

void S3Census::end_list(const Outcome& outcome) {
  if (outcome.result != 0 && first_failure_.result == 0) first_failure_ = outcome;
  if (--lists_open_ > 0) return;
  if (wish_.lists) catalogue_.end_round(first_failure_.result == 0);
  ended_(first_failure_);
  nameless_cursor_ = 0;
  while (wish_.lists && first_failure_.result == 0 && heads_open_ < kHeadsAtATime) {
    const size_t before = heads_open_;
    read_next_head();
    if (heads_open_ == before) return;
  }
}

void S3Census::read_next_head() {
  const std::string name = catalogue_.next_nameless(&nameless_cursor_);
  if (name.empty()) return;
  if (const auto named = parse_s3_object_name(wish_.prefix, name)) read_head(name, named->key_bytes);
}

void S3Census::read_head(const std::string& name, uint32_t key_bytes) {
  ++heads_open_;
  const uint64_t bytes = kS3FixedBytes + key_bytes;
  const auto head = std::make_shared<std::string>();
  S3Call call;
  call.verb = "GET";
  call.name = name;
  call.headers["range"] = "bytes=0-" + std::to_string(bytes - 1);
  call.deadline = S3Call::Clock::now() + wish_.page_timeout;
  call.begin = [head] { head->clear(); };
  call.sink = [head, bytes](std::string_view piece, uint32_t, const S3Headers&) {
    head->append(piece.substr(0, bytes - head->size()));
    return head->size() < bytes || piece.empty();
  };
  call.done = [this, head, name](Outcome& outcome) {
    --heads_open_;
    const std::string key = head->size() > kS3FixedBytes ? head->substr(kS3FixedBytes) : std::string();
    S3Head found;
    if (!key.empty() && s3_object_name(wish_.prefix, key) == name &&
        decode_s3_head(*head, key, found) == HeadVerdict::kWhole)
      catalogue_.put(name, key, about_s3_entry(key, found, outcome.headers.modified.value_or(0)));
    read_next_head();
  };
  client_.start(std::move(call));
}

}  // namespace maru::tierd
