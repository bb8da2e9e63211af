// A tier of your own: entries in this process's memory, the oldest given up for room. Build it with
//
//   g++ -std=c++20 -O2 -shared -fPIC -o memory_tier.so memory_tier.cc
//
// and name it in maru-tierd's configuration:
//
//   [[tier]]
//   name = "memory"
//   kind = "/usr/lib/maru-tierd/memory_tier.so"
//   [tier.options]
//   entries = 1000
//
// Its device answers at once, so a request is done when submit() returns. A tier with a slow device starts the transfer there, and
// completes it later from a thread of its own.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <maru/tier.h>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/eventfd.h>
#include <unistd.h>

namespace {

struct Entry {
  std::string attributes, payload;
  uint64_t note;
};

struct MemoryTier {
  std::mutex mutex;  // usage comes from other threads
  std::map<std::string, Entry, std::less<>> entries;
  std::deque<std::string> order;  // in which they were stored
  std::deque<maru_tier_completion> done;
  size_t entries_max = 1000;
  uint64_t evicted = 0;
  int event = -1;
};

MemoryTier& of(maru_tier* tier) { return *reinterpret_cast<MemoryTier*>(tier); }

int open_tier(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char* problem, size_t problem_bytes) {
  auto* const tier = new MemoryTier;
  for (size_t i = 0; i < n; ++i) {
    if (std::string_view(options[i].name) == "entries") {
      tier->entries_max = std::strtoull(options[i].value, nullptr, 10);
      continue;
    }
    std::snprintf(problem, problem_bytes, "option \"%s\" is unknown, expected entries", options[i].name);
    delete tier;
    return -EINVAL;
  }
  tier->event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  *ret_tier = reinterpret_cast<maru_tier*>(tier);
  return 0;
}

void close_tier(maru_tier* tier) {
  ::close(of(tier).event);
  delete &of(tier);
}

void store(MemoryTier& tier, std::string_view key, const maru_tier_request& request) {
  if (!tier.entries.contains(key)) tier.order.emplace_back(key);
  tier.entries[std::string(key)] = {std::string(static_cast<const char*>(request.attributes), request.attributes_bytes),
                                    std::string(static_cast<const char*>(request.payload), request.payload_bytes),
                                    request.note};
  while (tier.entries.size() > tier.entries_max && !tier.order.empty()) {
    tier.evicted += tier.entries.erase(tier.order.front());
    tier.order.pop_front();
  }
}

int load(const Entry& entry, const maru_tier_request& request) {
  if (entry.payload.size() != request.payload_bytes) return -ESTALE;
  if (entry.attributes.size() > request.attributes_bytes) return -ENOBUFS;
  std::memcpy(request.attributes, entry.attributes.data(), entry.attributes.size());
  std::memcpy(request.payload, entry.payload.data(), entry.payload.size());
  return 0;
}

maru_tier_completion serve(MemoryTier& tier, const maru_tier_request& request) {
  const std::string_view key(static_cast<const char*>(request.key), request.key_bytes);
  maru_tier_completion done = {};
  done.ticket = request.ticket;
  if (request.kind == MARU_TIER_STORE) return store(tier, key, request), done;
  const auto found = tier.entries.find(key);
  if (found == tier.entries.end()) return done.result = -ENOENT, done;
  const Entry& entry = found->second;
  done.attributes_bytes = static_cast<uint32_t>(entry.attributes.size());
  done.payload_bytes = entry.payload.size();
  done.note = entry.note;
  if (request.kind == MARU_TIER_LOAD) done.result = load(entry, request);
  if (request.kind == MARU_TIER_DELETE) tier.entries.erase(found);
  return done;
}

size_t submit(maru_tier* tier, const maru_tier_request* requests, size_t n) {
  const std::lock_guard lock(of(tier).mutex);
  for (size_t i = 0; i < n; ++i) of(tier).done.push_back(serve(of(tier), requests[i]));
  eventfd_write(of(tier).event, 1);
  return n;
}

size_t complete(maru_tier* tier, maru_tier_completion* ret_completions, size_t completions_max) {
  const std::lock_guard lock(of(tier).mutex);
  size_t taken = 0;
  for (; taken < completions_max && !of(tier).done.empty(); ++taken) {
    ret_completions[taken] = of(tier).done.front();
    of(tier).done.pop_front();
  }
  eventfd_t ignored = 0;
  if (of(tier).done.empty()) eventfd_read(of(tier).event, &ignored);
  return taken;
}

void get_properties(maru_tier*, maru_tier_properties* ret_properties) {
  *ret_properties = {};
  ret_properties->size = sizeof(*ret_properties);
  ret_properties->capabilities = MARU_TIER_KEEPS | MARU_TIER_BOUNDS_SELF;
}

void get_usage(maru_tier* tier, maru_tier_usage* ret_usage) {
  const std::lock_guard lock(of(tier).mutex);
  *ret_usage = {};
  ret_usage->size = sizeof(*ret_usage);
  ret_usage->entries = of(tier).entries.size();
  for (const auto& [key, entry] : of(tier).entries)
    ret_usage->entry_bytes += entry.payload.size() + entry.attributes.size();
  ret_usage->evicted = of(tier).evicted;
}

void get_health(maru_tier*, maru_tier_health* ret_health) {
  *ret_health = {};
  ret_health->size = sizeof(*ret_health);
  ret_health->is_ready = 1;
}

}  // namespace

extern "C" const maru_tier_calls maru_tier_plugin = {
    .size = sizeof(maru_tier_calls),
    .abi = MARU_TIER_ABI,
    .reserved0 = 0,
    .name = "memory",
    .open = open_tier,
    .close = close_tier,
    .event_descriptor = [](maru_tier* tier) { return of(tier).event; },
    .submit = submit,
    .complete = complete,
    .get_properties = get_properties,
    .get_usage = get_usage,
    .get_health = get_health,
    .list = [](maru_tier*, uint64_t*, maru_tier_entry*, size_t) { return -EOPNOTSUPP; },
    .get_group = nullptr,
    .list_groups = nullptr,
    .list_oldest = nullptr,
};
