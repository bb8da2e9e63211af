// The plug-in of scripted_tier.h: entries in memory.
#include "tests/tiers/scripted_tier.h"

#include "maru/tier.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <sys/eventfd.h>
#include <unistd.h>

namespace maru::test {
namespace {

class Script;
std::map<std::string, Script*, std::less<>> all;  // by name

class Script : public ScriptedTier {
 public:
  Script(std::string name, std::string hanging)
      : name_(std::move(name)), hanging_(std::move(hanging)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    all[name_] = this;
  }
  ~Script() override {
    all.erase(name_);
    ::close(event_);
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  std::vector<std::string> waiting() const override {
    std::vector<std::string> texts;
    for (const maru_tier_request& request : requests_) texts.push_back(text_of(request));
    return texts;
  }
  bool answer(const std::string& request, int result) override {
    const auto found =
        std::ranges::find_if(requests_, [&](const maru_tier_request& waiting) { return text_of(waiting) == request; });
    if (found == requests_.end()) return false;
    done_.push_back(result == 0 ? serve(*found) : maru_tier_completion{found->ticket, result, 0, 0, 0});
    requests_.erase(found);
    ::eventfd_write(event_, 1);
    return true;
  }
  bool has(const std::string& key) const override {
    return std::ranges::any_of(entries_, [&](const auto& entry) { return short_key(entry.first) == key; });
  }

  void spoil(const std::string& key) override {
    for (auto& [stored, entry] : entries_)
      if (short_key(stored) == key) entry.payload[0] = char(~entry.payload[0]);
  }
  void accept(bool accepts) override { accepts_ = accepts; }

  int event() const { return event_; }
  size_t submit(const maru_tier_request* requests, size_t n) {
    if (!accepts_) return 0;
    requests_.insert(requests_.end(), requests, requests + n);
    for (size_t i = 0; !hanging_.empty() && i < n; ++i)
      if (const std::string text = text_of(requests[i]); text != "load " + hanging_) answer(text, 0);
    return n;
  }
  size_t complete(maru_tier_completion* ret_done, size_t n) {
    n = std::min(n, done_.size());
    std::copy_n(done_.begin(), n, ret_done);
    done_.erase(done_.begin(), done_.begin() + std::ptrdiff_t(n));
    eventfd_t ignored = 0;
    if (done_.empty()) ::eventfd_read(event_, &ignored);
    return n;
  }
  uint64_t entries() const { return entries_.size(); }

 private:
  struct Entry {
    std::string attributes, payload;
    uint64_t note;
  };

  // Without the kind of the key and its tenant, which is none.
  static std::string_view short_key(std::string_view key) { return key.substr(std::min<size_t>(key.size(), 2)); }
  static std::string_view key_of(const maru_tier_request& request) {
    return {static_cast<const char*>(request.key), request.key_bytes};
  }
  static std::string text_of(const maru_tier_request& request) {
    constexpr const char* kNames[] = {"other ", "lookup ", "load ", "store ", "delete "};
    return kNames[std::min<uint32_t>(request.kind, 4)] + std::string(short_key(key_of(request)));
  }
  maru_tier_completion serve(const maru_tier_request& request) {
    maru_tier_completion done = {};
    done.ticket = request.ticket;
    const std::string key(key_of(request));
    if (request.kind == MARU_TIER_STORE) {
      entries_[key] = {std::string(static_cast<const char*>(request.attributes), request.attributes_bytes),
                       std::string(static_cast<const char*>(request.payload), request.payload_bytes), request.note};
      return done;
    }
    const auto found = entries_.find(key);
    if (found == entries_.end()) return done.result = -ENOENT, done;
    const Entry& entry = found->second;
    done.attributes_bytes = uint32_t(entry.attributes.size());
    done.payload_bytes = entry.payload.size();
    done.note = entry.note;
    if (request.kind == MARU_TIER_LOAD) {
      if (request.payload_bytes != entry.payload.size()) return done.result = -ESTALE, done;
      std::memcpy(request.attributes, entry.attributes.data(), entry.attributes.size());
      std::memcpy(request.payload, entry.payload.data(), entry.payload.size());
    }
    if (request.kind == MARU_TIER_DELETE) entries_.erase(found);
    return done;
  }

  const std::string name_, hanging_;
  const int event_;
  bool accepts_ = true;
  std::deque<maru_tier_request> requests_;
  std::deque<maru_tier_completion> done_;
  std::map<std::string, Entry> entries_;
};

Script& of(maru_tier* tier) { return *reinterpret_cast<Script*>(tier); }

int open_script(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char*, size_t) {
  std::string name, hanging;
  for (size_t i = 0; i < n; ++i) {
    const std::string_view option = options[i].name;
    if (option != "name" && option != "hang") return -EINVAL;
    (option == "name" ? name : hanging) = options[i].value;
  }
  *ret_tier = reinterpret_cast<maru_tier*>(new Script(name, hanging));
  return 0;
}
void close_script(maru_tier* tier) { delete &of(tier); }
int event_descriptor(maru_tier* tier) { return of(tier).event(); }
size_t submit(maru_tier* tier, const maru_tier_request* requests, size_t n) { return of(tier).submit(requests, n); }
size_t complete(maru_tier* tier, maru_tier_completion* ret_done, size_t n) { return of(tier).complete(ret_done, n); }
void get_properties(maru_tier*, maru_tier_properties* ret_properties) {
  *ret_properties = {};
  ret_properties->size = sizeof(*ret_properties);
  ret_properties->capabilities = MARU_TIER_KEEPS;
}
void get_usage(maru_tier* tier, maru_tier_usage* ret_usage) {
  *ret_usage = {};
  ret_usage->size = sizeof(*ret_usage);
  ret_usage->entries = of(tier).entries();
}
void get_health(maru_tier*, maru_tier_health* ret_health) {
  *ret_health = {};
  ret_health->size = sizeof(*ret_health);
  ret_health->is_ready = 1;
}

}  // namespace
}  // namespace maru::test

extern "C" maru::test::ScriptedTier* scripted_tier(const char* name) {
  const auto found = maru::test::all.find(std::string_view(name));
  return found == maru::test::all.end() ? nullptr : found->second;
}

extern "C" const maru_tier_calls maru_tier_plugin = {
    .size = sizeof(maru_tier_calls),
    .abi = MARU_TIER_ABI,
    .reserved0 = 0,
    .name = "scripted",
    .open = maru::test::open_script,
    .close = maru::test::close_script,
    .event_descriptor = maru::test::event_descriptor,
    .submit = maru::test::submit,
    .complete = maru::test::complete,
    .get_properties = maru::test::get_properties,
    .get_usage = maru::test::get_usage,
    .get_health = maru::test::get_health,
    .list = [](maru_tier*, uint64_t*, maru_tier_entry*, size_t) { return -EOPNOTSUPP; },
    .get_group = nullptr,
    .list_groups = nullptr,
    .list_oldest = nullptr,
};
