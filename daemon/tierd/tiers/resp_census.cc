#include "daemon/tierd/tiers/resp_census.h"

#include "daemon/tierd/tiers/groups.h"
#include "daemon/tierd/tiers/resp_text.h"

#include <algorithm>
#include <hiredis/hiredis.h>

namespace maru::tierd {

namespace {

constexpr const char* kNamesOfAStep = "256";  // that the server looks at; more of them may come
constexpr size_t kNamesMax = 4096;            // that an answer may have
constexpr size_t kNamesBytesMax = 8u << 20;   // of them all
constexpr size_t kChunksAsked = 64;           // of an entry with more of them these stand for all
constexpr size_t kAskedBytesMax = 16u << 10;  // of their names; of a long key fewer chunks are asked for

// As SCAN matches it: only these characters have a meaning there.
std::string pattern_of(std::string_view prefix) {
  std::string pattern;
  for (const char c : prefix) {
    if (std::string_view("*?[]^-\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace

Catalogue::About about_resp_entry(std::string_view key, const RespHead& head, uint64_t attributes_bytes) {
  Catalogue::About about;
  about.group = group_of(key);
  about.entry_bytes = head.payload_bytes + attributes_bytes;
  about.physical_bytes = kRespFixedBytes + key.size() + about.entry_bytes;
  about.written = int64_t(head.stored_us);
  about.has_details = true;
  about.note = head.note;
  about.attributes_bytes = uint32_t(attributes_bytes);
  return about;
}

RespCensus::RespCensus(std::string prefix, uint64_t names_max, Catalogue& catalogue,
                       std::function<bool(const std::string&)> is_changing)
    : prefix_(std::move(prefix)), names_max_(names_max), catalogue_(catalogue), is_changing_(std::move(is_changing)) {}

void RespCensus::begin() {
  catalogue_.begin_round();
  step_ = Step::kScan;
  cursor_ = "0";
  names_left_ = names_max_;
}

void RespCensus::end(std::string trouble) {
  step_ = Step::kNone;
  trouble_ = std::move(trouble);
  names_.clear();
  kept_.clear();
  gone_.clear();
  catalogue_.end_round(trouble_.empty());
}

void RespCensus::abandon() {
  if (is_under_way())
    end("the connection broke in the middle of a list; set list = false where a proxy or the server does not know "
        "SCAN");
}

size_t RespCensus::ask(RespOutput& output) {
  answered_ = 0;
  if (step_ == Step::kScan) {
    const std::string pattern = pattern_of(resp_head_name(prefix_, {})) + "*";
    output.add({{"SCAN"}, {cursor_}, {"MATCH"}, {pattern}, {"COUNT"}, {kNamesOfAStep}});
    return 1;
  }
  for (const Name& name : names_) {
    const std::string head_name = resp_head_name(prefix_, name.key);
    if (step_ == Step::kHeads) {
      const std::string last = std::to_string(kRespFixedBytes - 1);
      output.add({{"GETRANGE"}, {head_name}, {"0"}, {last}});
    } else if (step_ == Step::kChunks) {
      std::vector<std::string> chunks;
      for (size_t i = 0; i < name.chunks; ++i)
        chunks.push_back(resp_chunk_name(prefix_, name.key, name.head.payload_checksum, i));
      std::vector<RespWord> words = {{"EXISTS"}};
      for (const std::string& chunk : chunks) words.push_back({chunk});
      output.add(words);
    } else {
      output.add({{"DEL"}, {head_name}});
    }
  }
  return names_.size();
}

void RespCensus::take(const redisReply& reply) {
  if (step_ == Step::kNone) return;  // ended by an answer before
  const bool is_of_another_kind = reply.type == REDIS_REPLY_ERROR && text_of(reply).starts_with("WRONGTYPE");
  if (reply.type == REDIS_REPLY_ERROR && !is_of_another_kind)
    return end("the server refuses to list the entries (\"" + std::string(text_of(reply)) +
               "\"); allow SCAN, GETRANGE, EXISTS and DEL to this user, or set list = false");
  if (step_ == Step::kScan) {
    if (!take_names(reply)) return;
  } else {
    if (answered_ >= names_.size()) return end("the server gives more answers than there were questions");
    Name& name = names_[answered_++];
    if (step_ == Step::kHeads && reply.type == REDIS_REPLY_STRING) {
      auto head = decode_resp_numbers(text_of(reply), name.key, name.attributes_bytes);
      if (head) {
        name.head = std::move(*head);
        const uint64_t asked = std::max<uint64_t>(kAskedBytesMax / std::max<size_t>(name.key.size(), 1), 1);
        name.chunks = size_t(std::min({name.head.chunks(), uint64_t{kChunksAsked}, asked}));
        kept_.push_back(std::move(name));
      }
    } else if (step_ == Step::kChunks && reply.type == REDIS_REPLY_INTEGER) {
      if (uint64_t(reply.integer) < name.chunks)
        gone_.push_back(std::move(name));
      else if (!catalogue_.listed(name.key, about_resp_entry(name.key, name.head, name.attributes_bytes)))
        return end("the server has more entries than list_memory has room for; raise list_memory, or set list = false");
    }
    if (answered_ < names_.size()) return;
  }
  next_step();
}

// Names with no step left are done. A step without names is passed over.
void RespCensus::next_step() {
  if (step_ == Step::kHeads) {
    // An entry without a payload has no chunks to ask for.
    for (const Name& name : kept_)
      if (name.chunks == 0)
        (void)catalogue_.listed(name.key, about_resp_entry(name.key, name.head, name.attributes_bytes));
    std::erase_if(kept_, [](const Name& name) { return name.chunks == 0; });
  }
  if (step_ == Step::kChunks) {
    // A store that this process has sent meanwhile has made the entry whole again.
    kept_ = std::exchange(gone_, {});
    std::erase_if(kept_, [&](const Name& name) { return catalogue_.has_changed(name.key) || is_changing_(name.key); });
  }
  names_ = std::exchange(kept_, {});
  step_ = step_ == Step::kDelete ? Step::kScan : Step(uint8_t(step_) + 1);
  if (names_.empty()) step_ = Step::kScan;
  if (step_ == Step::kScan && cursor_ == "0") end({});
}

bool RespCensus::take_names(const redisReply& reply) {
  const bool is_it = reply.type == REDIS_REPLY_ARRAY && reply.elements == 2 &&
                     reply.element[0]->type == REDIS_REPLY_STRING && reply.element[1]->type == REDIS_REPLY_ARRAY &&
                     reply.element[1]->elements <= kNamesMax;
  if (!is_it) return end("the server's answer to SCAN is no list of names; set list = false"), false;
  cursor_ = text_of(*reply.element[0]);
  const std::string head_prefix = resp_head_name(prefix_, {});
  size_t names_bytes = 0;
  for (size_t i = 0; i < reply.element[1]->elements; ++i) {
    const redisReply& element = *reply.element[1]->element[i];
    if (element.type != REDIS_REPLY_STRING) continue;
    const std::string_view name = text_of(element);
    names_bytes += name.size();
    if (!name.starts_with(head_prefix) || name.size() - head_prefix.size() > MARU_TIER_KEY_BYTES_MAX ||
        name.size() == head_prefix.size())
      continue;
    Name& kept = kept_.emplace_back();
    kept.key = name.substr(head_prefix.size());
  }
  if (names_bytes > kNamesBytesMax)
    return end("an answer to SCAN has " + std::to_string(names_bytes) + " bytes of names, at most " +
               std::to_string(kNamesBytesMax) + " are expected; set list = false"),
           false;
  if (kept_.size() >= names_left_)
    return end("the server has more entries, or more other keys, than list_memory has room for; raise list_memory, or "
               "set list = false"),
           false;
  names_left_ -= kept_.size() + 1;
  return true;
}

}  // namespace maru::tierd
