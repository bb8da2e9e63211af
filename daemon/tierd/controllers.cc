#include "daemon/tierd/controllers.h"

#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/tierd/page_http.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace maru::tierd {

namespace {

using maru::daemon::log_error;
using maru::daemon::log_info;
using maru::daemon::log_warning;

constexpr uint32_t kMaruTimeoutMs = 1000;  // the loop stands still for so long at most when marud does not answer
constexpr int kAttachRetryMs = 200;
constexpr int kDeadlineTickMs = 10;  // while something has a deadline
constexpr int kIdleTickMs = 500;
constexpr std::chrono::seconds kLookPause{1};  // between looks at usage and health
constexpr std::chrono::seconds kAnswerPatience{5};
constexpr size_t kQuotaRowsMax = 400;   // limits, and rows: an answer has to fit into the buffer of a socket
constexpr size_t kClearedAtATime = 64;  // entries of a tier that an administrator empties
constexpr size_t kTenantNameMax = 64;   // bytes, as maru_tenant() takes them

std::string scope_of(const maru_tier_group& group) {
  return {reinterpret_cast<const char*>(group.name), group.name_bytes};
}

// As it is written into the file, and asked for again. Of a tenant without a name the pool's number, as marudctl shows it.
std::string tenant_text(const std::string& scope) {
  if (scope.empty()) return "(none)";
  if (scope.front() == 'n') return maru::daemon::tenant_name_text(scope.substr(1));
  uint64_t number = 0;
  for (size_t i = scope.size(); i-- > scope.size() - 8;) number = number << 8 | static_cast<unsigned char>(scope[i]);
  return "id:" + std::to_string(number);
}

}  // namespace

Controllers::Controllers(const Settings& settings, maru::daemon::beside::Service& service)
    : settings_(settings),
      service_(service),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      asked_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<Controllers>> Controllers::start(const Settings& settings,
                                                        maru::daemon::beside::Service& service) {
  std::unique_ptr<Controllers> controllers(new Controllers(settings, service));
  if (!controllers->stop_.is_open() || !controllers->poll_.is_open() || !controllers->asked_.is_open())
    return failure(errno, "make descriptors");
  for (const auto step : {&Controllers::open_tiers, &Controllers::attach, &Controllers::begin})
    if (auto done = (*controllers.*step)(); !done) return tl::unexpected(done.error());
  return controllers;
}

Result<void> Controllers::open_tiers() {
  auto quotas = TenantQuotas::open(settings_.quotas_path, settings_.quota_bytes);
  if (!quotas) return tl::unexpected(quotas.error());
  quotas_ = std::move(*quotas);
  for (const TierSettings& tier : settings_.tiers) {
    auto opened = Tier::open(tier.kind, tier.options);
    if (!opened) return failure(opened.error().code, "tier \"" + tier.slot.name + "\": " + opened.error().doing);
    slots_.push_back(std::make_unique<TierSlot>(tier.slot, std::move(*opened), service_.counters()));
    slots_.back()->circuit_changed = [this, name = tier.slot.name](bool is_open) {
      const std::string trouble = "the tier " + name + " fails, and gets no requests for a while";
      if (is_open && service_.health().set("breaker of " + name, trouble)) log_warning("{}", trouble);
      if (!is_open && service_.health().clear("breaker of " + name)) log_info("the tier {} works again", name);
    };
    const maru_tier_usage usage = slots_.back()->tier().usage();
    log_info("the tier {} ({}) has {} entries of {} bytes", tier.slot.name, slots_.back()->tier().kind(), usage.entries,
             usage.entry_bytes);
  }
  return {};
}

Result<void> Controllers::attach() {
  maru_attach_options options = {};
  options.size = sizeof(options);
  options.socket_path = settings_.socket_path.empty() ? nullptr : settings_.socket_path.c_str();
  options.pool = settings_.pool.c_str();
  options.timeout_ms = kMaruTimeoutMs;
  options.thread_cache_pages = 1;
  for (int tries = 0;; ++tries) {
    const int result = maru_attach(&options, &client_);
    if (result == 0) break;
    const bool may_come =
        result == -ECONNREFUSED || result == -ENODEV || result == -ETIMEDOUT || result == -EUSERS || result == -ENOENT;
    if (!may_come || tries >= 5000 / kAttachRetryMs)
      return failure(-result, "attach to the pool " + settings_.pool +
                                  " (is marud running, may this user use the pool, and is " + "[pool] right?)");
    ::poll(nullptr, 0, kAttachRetryMs);
  }
  maru_geometry geometry = {};
  geometry.size = sizeof(geometry);
  maru_get_geometry(client_, &geometry);
  std::memcpy(pool_id_.data(), geometry.uuid, pool_id_.size());
  const uint64_t page_bytes = geometry.pages * geometry.page_bytes;
  StoreSettings store = settings_.store;
  store.pinned_bytes_max = page_bytes / 100 * settings_.pins_percent;
  stores_ = std::make_unique<StoreController>(store, client_, pool_id_, names_, *quotas_, slots_, service_.counters());
  PrefetchSettings prefetch;
  // A tier that hangs keeps the pages of its loads, and takes no more of the pool than by its pins.
  prefetch.in_flight_bytes_max = std::min(settings_.in_flight_bytes_max, store.pinned_bytes_max);
  prefetch.held_bytes_max = page_bytes / 100 * settings_.held_percent;
  prefetches_ =
      std::make_unique<PrefetchController>(prefetch, client_, pool_id_, names_, slots_, *stores_, service_.counters());
  for (const auto& [name, bytes] : quotas_->limits()) learn_name(name);
  stores_->deleted = [this](const std::string& key) { prefetches_->void_load(key); };
  return {};
}

Result<void> Controllers::begin() {
  if (!settings_.prefetch_socket.empty()) {
    auto door = PrefetchDoor::open(settings_.prefetch_socket, *prefetches_,
                                   [this](uint32_t kind, const std::string& name, PrefetchDoor::Answer answer) {
                                     order(kind, name, std::move(answer));
                                   });
    if (!door) return tl::unexpected(door.error());
    door_ = std::move(*door);
  }
  std::vector<int> descriptors = {stop_.get(), feed_.descriptor(), asked_.get()};
  for (const auto& slot : slots_) descriptors.push_back(slot->event_descriptor());
  if (door_) descriptors.push_back(door_->descriptor());
  for (const int descriptor : descriptors) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) return failure(errno, "watch a descriptor");
  }
  follower_ = std::make_unique<PoolFollower>(settings_.socket_path, settings_.pool, feed_, service_.counters(),
                                             service_.health());
  thread_ = std::thread([this] { run(); });
  service_.http().set([this](const maru::daemon::beside::HttpCall& call) {
    const AskOrder ask_this = [this](uint32_t kind, const std::string& body) { return ask(kind, body); };
    const auto page = answer_page(call, ask_this);
    return page ? page : answer_quota(call, ask_this);
  });
  return {};
}

Controllers::~Controllers() {
  service_.http().set({});
  is_stopping_ = true;
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
  follower_.reset();
  door_.reset();
  // Tiers first: they give all memory back, and then nothing of theirs refers to the controllers.
  slots_.clear();
  prefetches_.reset();
  stores_.reset();
  maru_detach(client_);
}

bool Controllers::is_alive() { return std::exchange(rounds_seen_, rounds_.load()) != rounds_.load(); }

void Controllers::run() {
  std::array<epoll_event, 32> events;
  while (!is_stopping_) {
    bool has_deadline = prefetches_->has_open() || stores_->has_copies();
    for (const auto& slot : slots_) has_deadline = has_deadline || slot->has_open();
    const int n =
        ::epoll_wait(poll_.get(), events.data(), int(events.size()), has_deadline ? kDeadlineTickMs : kIdleTickMs);
    ++rounds_;
    for (int i = 0; i < n; ++i) serve(events[size_t(i)].data.fd);
    const Clock::time_point now = Clock::now();
    for (const auto& slot : slots_) slot->expire(now);
    prefetches_->expire(now);
    prefetches_->pump();  // late operations may have left room
    stores_->pump();
    stores_->report_copies(now);
    if (door_) door_->tick(now);
    if (!draining_.empty()) answer_drained();
    if (now < next_look_) continue;
    next_look_ = now + kLookPause;
    measure();
    stores_->hold_to_quotas();
    stores_->delete_stale();
    clear_more();
    if (pool_is_gone()) return service_.stop();
  }
}

void Controllers::serve(int descriptor) {
  if (descriptor == feed_.descriptor()) return stores_->take(feed_.take());
  if (descriptor == asked_.get()) return answer_asked();
  if (door_ && descriptor == door_->descriptor()) return door_->serve();
  for (const auto& slot : slots_)
    if (descriptor == slot->event_descriptor()) {
      slot->take_completions();
      clear_more();
      stores_->pump();
      prefetches_->pump();
    }
}

// Another pool under the same name needs another attachment: this process ends, and its service manager starts the next one.
bool Controllers::pool_is_gone() {
  const maru_key key = {"?", 1, MARU_KEY_BYTES, 0};
  if (maru_exists(client_, &key) != -ESHUTDOWN) return false;
  log_error("the pool {} is being removed, or was replaced; maru-tierd ends and has to be started again",
            settings_.pool);
  return true;
}

void Controllers::measure() {
  for (const auto& slot : slots_) {
    const maru_tier_usage usage = slot->tier().usage();
    const Counters::Labels labels = {{"tier", slot->settings().name}};
    Counters& counters = service_.counters();
    counters.gauge("maru_tier_entries", "Entries in the tier", labels).set(usage.entries);
    counters.gauge("maru_tier_entry_bytes", "Bytes of their payloads and attributes", labels).set(usage.entry_bytes);
    counters.gauge("maru_tier_physical_bytes", "Bytes that the tier takes of its device", labels)
        .set(usage.physical_bytes);
    counters.gauge("maru_tier_capacity_bytes", "Bytes that the tier never passes; 0: not its decision", labels)
        .set(usage.capacity_bytes);
    counters.gauge("maru_tier_evicted", "Entries that the tier gave up for room since it was opened", labels)
        .set(usage.evicted);
    counters.gauge("maru_tier_damaged", "Entries that did not verify since it was opened", labels).set(usage.damaged);
    counters.gauge("maru_tier_reinserted", "Entries moved because of late use since it was opened", labels)
        .set(usage.reinserted);
    const maru_tier_health health = slot->tier().health();
    const std::string part = "tier " + slot->settings().name;
    if (health.is_ready && health.text[0] == 0) {
      if (service_.health().clear(part)) log_info("the tier {} is well", slot->settings().name);
    } else if (service_.health().set(part, part + ": " + health.text)) {
      log_warning("the tier {}: {}", slot->settings().name, health.text);
    }
  }
}

OrderAnswer Controllers::ask(uint32_t kind, const std::string& body) {
  std::future<OrderAnswer> answer;
  {
    const std::lock_guard lock(asked_mutex_);
    asked_orders_.push_back({kind, body, {}});
    answer = asked_orders_.back().answer.get_future();
  }
  eventfd_write(asked_.get(), 1);
  if (answer.wait_for(kAnswerPatience) == std::future_status::ready) return answer.get();
  return {-ETIMEDOUT, "{\"text\": \"maru-tierd does not answer in time; try again\"}"};
}

void Controllers::answer_asked() {
  eventfd_t ignored = 0;
  eventfd_read(asked_.get(), &ignored);
  std::deque<Asked> all;
  {
    const std::lock_guard lock(asked_mutex_);
    all = std::exchange(asked_orders_, {});
  }
  for (Asked& asked : all)
    order(asked.kind, asked.body, [&](int result, const std::string& json) { asked.answer.set_value({result, json}); });
}

// -- operators -----------------------------------------------------------------------------------------------------------

void Controllers::order(uint32_t kind, const std::string& name, PrefetchDoor::Answer answer) {
  switch (kind) {
    case maru::prefetch::kListTiers: return answer(0, tiers_json());
    case maru::prefetch::kDrainTiers: draining_.push_back(std::move(answer)); return answer_drained();
    case maru::prefetch::kClearTier: {
      const auto cleared = clear(name);
      if (cleared) return answer(0, "{\"deleting\": " + std::to_string(*cleared) + "}");
      return answer(-cleared.error().code, maru::daemon::json_text({{"text", cleared.error().doing}}));
    }
    case maru::prefetch::kListQuotas: return answer(0, quotas_json(name));
    case maru::prefetch::kSetQuota:
    case maru::prefetch::kDropQuota: {
      const auto changed = change_quota(kind, name);
      if (changed) return answer(0, *changed);
      return answer(-changed.error().code, maru::daemon::json_text({{"text", changed.error().text()}}));
    }
    default: return answer(-EOPNOTSUPP, "{\"text\": \"this maru-tierd does not know that order\"}");
  }
}

std::string Controllers::tiers_json() {
  nlohmann::json all = {{"pool", settings_.pool},
                        {"queued", stores_->queued()},
                        {"pinned_bytes", stores_->pinned_bytes()},
                        {"pid", ::getpid()},
                        {"loading_bytes", prefetches_->in_flight_bytes()},
                        {"tiers", nlohmann::json::array()}};
  for (const auto& slot : slots_) {
    const maru_tier_usage usage = slot->tier().usage();
    const TierSlot::Total lookup = slot->total(MARU_TIER_LOOKUP), load = slot->total(MARU_TIER_LOAD),
                          store = slot->total(MARU_TIER_STORE);
    all["tiers"].push_back({{"name", slot->settings().name},
                            {"kind", slot->tier().kind()},
                            {"entries", usage.entries},
                            {"entry_bytes", usage.entry_bytes},
                            {"physical_bytes", usage.physical_bytes},
                            {"capacity_bytes", usage.capacity_bytes},
                            {"evicted", usage.evicted},
                            {"damaged", usage.damaged},
                            {"reinserted", usage.reinserted},
                            {"in_flight", slot->unreleased()},
                            {"queue", slot->queued()},
                            {"hits", lookup.done},
                            {"misses", lookup.absent},
                            {"loads", load.done},
                            {"loaded_bytes", load.bytes},
                            {"stores", store.done},
                            {"stored_bytes", store.bytes},
                            {"failures", lookup.failed + load.failed + store.failed},
                            {"load_bytes_per_second", uint64_t(slot->load_bytes_per_second())},
                            {"store_bytes_per_second", uint64_t(slot->store_bytes_per_second())},
                            {"breaker", slot->circuit_text()},
                            {"trouble", slot->tier().health().text}});
  }
  return maru::daemon::json_text(all);
}

// Tenants with a limit or with entries, each once for each tier that counts them; or the requested tenant alone.
std::string Controllers::quotas_json(const std::string& wish) {
  const nlohmann::json asked = maru::daemon::json_of(wish);
  const std::string only = asked.is_object() ? maru::daemon::text_in(asked, "tenant") : "";
  nlohmann::json all = {{"default_bytes", quotas_->default_bytes()},
                        {"limits", nlohmann::json::object()},
                        {"usage", nlohmann::json::array()},
                        {"not_counted", nlohmann::json::array()}};
  size_t left_out = 0;
  for (const auto& [name, bytes] : quotas_->limits()) {
    const std::string tenant = maru::daemon::tenant_name_text(name);
    if (!only.empty() && tenant != only) continue;
    if (all["limits"].size() < kQuotaRowsMax)
      all["limits"][tenant] = bytes;
    else
      ++left_out;
  }
  for (const auto& slot : slots_) {
    if (!slot->tier().counts_groups()) {
      all["not_counted"].push_back(slot->settings().name);
      continue;
    }
    for (const maru_tier_group& group : slot->tier().groups()) {
      const std::string scope = scope_of(group);
      if (!only.empty() && tenant_text(scope) != only) continue;
      if (all["usage"].size() >= kQuotaRowsMax) {
        ++left_out;
        continue;
      }
      all["usage"].push_back({{"tenant", tenant_text(scope)},
                              {"tier", slot->settings().name},
                              {"entries", group.entries},
                              {"used_bytes", group.entry_bytes},
                              {"limit_bytes", quotas_->limit_of(scope)}});
    }
  }
  if (left_out > 0) all["left_out"] = left_out;
  return maru::daemon::json_text(all);
}

// A tenant with a limit is known by its name, whether marud was told it or not.
void Controllers::learn_name(const std::string& tenant) {
  uint64_t number = 0;
  if (maru_tenant(client_, tenant.data(), tenant.size(), &number) == 0) names_.learn(number, tenant);
}

Result<std::string> Controllers::change_quota(uint32_t kind, const std::string& body) {
  const nlohmann::json asked = maru::daemon::json_of(body);
  const bool is_set = kind == maru::prefetch::kSetQuota;
  if (!asked.is_object() || !asked.value("tenant", nlohmann::json()).is_string() ||
      (is_set && !asked.value("bytes", nlohmann::json()).is_number_unsigned()))
    return failure(EINVAL, "read an order about a quota: expected a tenant, and a number of bytes to set");
  const std::string text = asked["tenant"];
  const auto bytes = maru::daemon::key_bytes(text);
  const std::string tenant(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (tenant.empty() || tenant.size() > kTenantNameMax || text.starts_with("id:"))
    return failure(EINVAL, "find the tenant \"" + text + "\": expected its name, of 1 to " +
                               std::to_string(kTenantNameMax) + " bytes");
  if (auto done = is_set ? quotas_->set(tenant, asked["bytes"]) : quotas_->remove(tenant); !done)
    return tl::unexpected(done.error());
  learn_name(tenant);
  stores_->hold_to_quotas();
  return maru::daemon::json_text({{"tenant", text}, {"limit_bytes", quotas_->limit_of("n" + tenant)}});
}

void Controllers::answer_drained() {
  if (!stores_->is_idle()) return;
  for (auto& answer : std::exchange(draining_, {})) answer(0, "{\"drained\": true}");
}

// A few at a time: an operation's deadline runs from the moment when the tier gets it.
void Controllers::clear_more() {
  while (!clearing_.empty()) {
    auto& [slot, key] = clearing_.front();
    if (slot->unreleased() >= kClearedAtATime) return;
    stores_->forget_in(*slot, key);
    clearing_.pop_front();
  }
}

Result<uint64_t> Controllers::clear(const std::string& name) {
  for (const auto& slot : slots_) {
    if (slot->settings().name != name) continue;
    uint64_t cursor = 0;
    std::vector<maru_tier_entry> page(64);
    std::vector<std::string> keys;
    int n = 0;
    while ((n = slot->tier().list(&cursor, page.data(), page.size())) > 0)
      for (int i = 0; i < n; ++i)
        keys.emplace_back(reinterpret_cast<const char*>(page[size_t(i)].key), page[size_t(i)].key_bytes);
    if (n < 0) return failure(-n, "list the entries of tier \"" + name + "\"; clear it on its server");
    for (std::string& key : keys) clearing_.emplace_back(slot.get(), std::move(key));
    const uint64_t found = keys.size();
    clear_more();
    return found;
  }
  return failure(ENOENT, "there is no tier \"" + name + "\"; marudctl tier list shows all");
}

}  // namespace maru::tierd
