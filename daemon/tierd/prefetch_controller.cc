#include "daemon/tierd/prefetch_controller.h"

#include "maru/prefetch.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace maru::tierd {

namespace {

uint64_t unix_ms() {
  return uint64_t(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

}  // namespace

struct PrefetchController::Load {
  enum class State : uint8_t { kLooking, kFound, kLoading, kLoaded, kEnded };

  std::string key;
  WantedKey wanted;
  State state = State::kLooking;
  size_t tier = 0;
  maru_tier_completion found = {};  // the lookup's
  maru_tier_completion done = {};   // the load's
  std::string attributes_room;
  Attributes attributes;
  maru_buffer buffer = {};
  bool has_buffer = false, tier_has_memory = false, is_void = false;
  bool is_hung = false;          // the tier has the memory still, behind its deadline
  bool has_failed_tier = false;  // a nearer tier, which might have it, did not answer
  std::vector<std::pair<std::weak_ptr<Ticket>, size_t>> waiters;
  std::vector<std::shared_ptr<Load>> children;  // read, and published after this one

  bool has_waiters() const {
    return std::any_of(waiters.begin(), waiters.end(), [](const auto& waiter) {
      const auto ticket = waiter.first.lock();
      return ticket && !ticket->is_finished && !Ticket::is_settled(ticket->states[waiter.second]);
    });
  }
};

PrefetchController::PrefetchController(const PrefetchSettings& settings, maru_client* client, const PoolId& pool,
                                       TenantNames& names, Slots& slots, StoreController& stores, Counters& counters)
    : settings_(settings),
      client_(client),
      pool_(pool),
      names_(names),
      slots_(slots),
      stores_(stores),
      tickets_(counters.counter("maru_tier_prefetches_total", "Requests to prefetch")),
      late_tickets_(counters.counter("maru_tier_prefetch_late_total", "Of them, those that ended at their deadline")),
      in_pool_(counters.counter("maru_tier_prefetch_in_pool_total", "Keys that the pool had")),
      loaded_(counters.counter("maru_tier_loaded_blocks_total", "Blocks loaded and published")),
      loaded_bytes_(counters.counter("maru_tier_loaded_bytes_total", "Their payload bytes")),
      absent_(counters.counter("maru_tier_prefetch_absent_total", "Keys that no tier had")),
      failed_(counters.counter("maru_tier_prefetch_failed_total", "Keys whose load failed")),
      gated_(counters.counter("maru_tier_prefetch_gated_total",
                              "Keys not loaded, as computing them is estimated to be faster")),
      unproven_(counters.counter("maru_tier_unproven_total", "Loads whose bytes were not those that were stored")),
      no_room_(counters.counter("maru_tier_prefetch_no_room_total", "Loads for which the pool had no room")),
      parent_gone_(counters.counter("maru_tier_prefetch_parent_gone_total", "Loads whose parent was not in the pool")),
      discarded_(counters.counter("maru_tier_discarded_loads_total", "Loads that nobody waited for any more")),
      held_(counters.gauge("maru_tier_held_bytes", "Bytes of the pool that are pinned for those who asked")),
      in_flight_(counters.gauge("maru_tier_load_bytes_in_flight", "Bytes that tiers are reading into the pool")),
      temporaries_([&stores](maru_block block) { return stores.free_block(block); }) {}

PrefetchController::~PrefetchController() = default;

PrefetchController::Ticket::~Ticket() {
  if (newest.block != 0) (void)maru_release(controller_.client_, &newest);
  if (!views.empty()) (void)maru_release_batch(controller_.client_, views.data(), views.size());
  controller_.temporaries_.let_go(temporary);
  controller_.held_bytes_ -= held_bytes;
  controller_.held_.set(controller_.held_bytes_);
}

// -- tickets -------------------------------------------------------------------------------------------------------------

std::shared_ptr<PrefetchController::Ticket> PrefetchController::begin(Wanted wanted,
                                                                      std::function<void(const Reply&)> finished) {
  tickets_.add();
  auto ticket = std::make_shared<Ticket>(*this);
  ticket->wanted = std::move(wanted);
  ticket->finished = std::move(finished);
  ticket->begun = Clock::now();
  ticket->deadline =
      ticket->begun + std::chrono::milliseconds(std::min(ticket->wanted.deadline_ms, settings_.deadline_ms_max));
  const size_t n = ticket->wanted.keys.size();
  ticket->reply.keys = uint32_t(n);
  ticket->states.assign(n, Ticket::State::kLooking);
  ticket->loads.resize(n);
  running_.push_back(ticket);
  std::vector<std::shared_ptr<Load>> fresh;
  for (size_t i = 0; i < n; ++i) {
    const WantedKey& wanted_key = ticket->wanted.keys[i];
    if (pin(*ticket, wanted_key.now())) {
      ticket->states[i] = Ticket::State::kThere;
      ++ticket->reply.in_pool;
      in_pool_.add();
      continue;
    }
    std::string key = entry_key(wanted_key.now(), pool_, names_);
    auto& load = loads_[key];
    if (!load) {
      load = std::make_shared<Load>();
      load->key = std::move(key);
      load->wanted = wanted_key;
      fresh.push_back(load);
    }
    load->waiters.emplace_back(ticket, i);
    ticket->loads[i] = load;
    if (load->state == Load::State::kFound) ticket->states[i] = Ticket::State::kFound;
    if (load->state == Load::State::kLoading || load->state == Load::State::kLoaded)
      ticket->states[i] = Ticket::State::kLoading;
  }
  for (const auto& load : fresh)
    if (load->state == Load::State::kLooking) look(load, 0);
  advance(ticket);
  return ticket;
}

void PrefetchController::cancel(const std::shared_ptr<Ticket>& ticket) {
  if (!ticket->is_finished) finish(ticket, false);
}

void PrefetchController::expire(Clock::time_point now) {
  for (const auto& ticket : std::vector(running_))
    if (!ticket->is_finished && ticket->deadline <= now) {
      late_tickets_.add();
      finish(ticket, true);
    }
}

void PrefetchController::pump() {
  for (const auto& ticket : std::vector(running_)) advance(ticket);
}

bool PrefetchController::pin(Ticket& ticket, const maru_key& key) {
  maru_view view = {};
  if (maru_pin(client_, &key, &view) != 0) return false;
  keep(ticket, view.block);
  if (held_bytes_ + view.bytes > settings_.held_bytes_max) {
    // The newest is held in any case. Of a chain this holds all the others, too: the next load would evict its end otherwise.
    if (ticket.newest.block != 0) (void)maru_release(client_, &ticket.newest);
    ticket.newest = view;
    return true;
  }
  ticket.views.push_back(view);
  ticket.held_bytes += view.bytes;
  held_bytes_ += view.bytes;
  held_.set(held_bytes_);
  return true;
}

// A temporary block leaves the pool with the last ticket that wants it.
void PrefetchController::keep(Ticket& ticket, maru_block block) {
  if (temporaries_.hold(block, ticket.wanted.is_temporary)) ticket.temporary.push_back(block);
}

// Begins loads in the order of the keys, as far as it is known which there are and as there is room.
void PrefetchController::advance(const std::shared_ptr<Ticket>& ticket) {
  if (std::exchange(ticket->is_advancing, true)) return;  // a failure below, which the loop sees
  start_loads(ticket);
  ticket->is_advancing = false;
  if (!ticket->is_finished && std::all_of(ticket->states.begin(), ticket->states.end(), &Ticket::is_settled))
    finish(ticket, true);
}

bool PrefetchController::Ticket::ends_at(State state) const {
  if (wanted.policy == MARU_PREFETCH_SPARSE) return false;
  return state == State::kAbsent || (state == State::kMissing && wanted.policy == MARU_PREFETCH_PREFIX);
}

// Loads that are under way behind it go on for other tickets alone. Keys before it may still wait for their turn.
void PrefetchController::Ticket::end_behind(size_t index) {
  for (size_t i = index + 1; i < states.size(); ++i)
    if (states[i] != State::kThere) states[i] = State::kMissing;
}

void PrefetchController::start_loads(const std::shared_ptr<Ticket>& ticket) {
  using State = Ticket::State;
  auto& states = ticket->states;
  while (!ticket->is_finished && ticket->next < states.size()) {
    State& state = states[ticket->next];
    if (state == State::kLooking) return;
    if (ticket->ends_at(state)) {
      ticket->end_behind(ticket->next);
      for (size_t i = std::exchange(ticket->next, states.size()) + 1; i < states.size(); ++i) leave(ticket->loads[i]);
      return;
    }
    if (state == State::kFound) {
      const auto load = ticket->loads[ticket->next];
      if (is_gated(*ticket, *load)) {
        state = State::kMissing;
        ++ticket->reply.gated;
        gated_.add();
        leave(load);
        continue;
      }
      state = State::kLoading;
      if (!start(load)) {
        // A failure may have changed the state; "no room now" has not.
        if (state == State::kLoading) state = State::kFound;
        return;
      }
    }
    ++ticket->next;
  }
}

void PrefetchController::finish(const std::shared_ptr<Ticket>& ticket, bool is_answered) {
  ticket->is_finished = true;
  std::erase(running_, ticket);
  Reply& reply = ticket->reply;
  for (const Ticket::State state : ticket->states) reply.late += !Ticket::is_settled(state);
  while (reply.usable < reply.keys && ticket->states[reply.usable] == Ticket::State::kThere) ++reply.usable;
  reply.took_us = uint64_t(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - ticket->begun).count());
  // A load without a waiting ticket ends, but for one under way that is the parent of a load that a ticket waits for.
  for (const auto& load : std::exchange(ticket->loads, {})) {
    if (!load || load->state == Load::State::kEnded || load->has_waiters()) continue;
    if (load->state <= Load::State::kFound || wanting(*load).empty()) detach(load);
  }
  if (is_answered) ticket->finished(reply);
}

// Only computing is certain to be as fast as the asker says; a tier is as fast as it was, and others wait before. The asker
// would compute the ticket's blocks under way first, and then this one. Where the speed is unknown, the loads of one ticket
// show it.
bool PrefetchController::is_gated(Ticket& ticket, const Load& load) const {
  const TierSlot& slot = *slots_[load.tier];
  const double speed = slot.load_bytes_per_second();
  if (ticket.wanted.compute_us == 0) return false;
  ticket.is_trial = ticket.is_trial || speed <= 0 || !slot.is_load_speed_recent(Clock::now());
  if (ticket.is_trial) return false;
  const auto blocks = std::count(ticket.states.begin(), ticket.states.end(), Ticket::State::kLoading) + 1;
  return double(in_flight_bytes_ + load.found.payload_bytes) / speed * 1e6 >
         double(ticket.wanted.compute_us) * double(blocks);
}

// -- loads ---------------------------------------------------------------------------------------------------------------

void PrefetchController::look(const std::shared_ptr<Load>& load, size_t tier) {
  // A deletion under way would pass the lookup. Entries that could not be deleted are as good as gone.
  if (stores_.is_changing(load->key)) return fail(load, &Reply::absent);
  while (tier < slots_.size() && stores_.is_stale(*slots_[tier], load->key)) ++tier;
  if (tier == slots_.size()) return fail(load, load->has_failed_tier ? &Reply::failed : &Reply::absent);
  load->tier = tier;
  TierOperation operation;
  operation.request.kind = MARU_TIER_LOOKUP;
  operation.request.key = load->key.data();
  operation.request.key_bytes = uint32_t(load->key.size());
  operation.answered = [this, load](const maru_tier_completion& done) { looked(load, done); };
  operation.released = [load] {};
  slots_[tier]->submit(std::move(operation));
}

void PrefetchController::looked(const std::shared_ptr<Load>& load, const maru_tier_completion& done) {
  if (load->state == Load::State::kEnded) return;
  const bool is_here =
      done.result == 0 && done.payload_bytes > 0 && done.attributes_bytes <= MARU_TIER_ATTRIBUTES_BYTES_MAX;
  if (!is_here) {
    load->has_failed_tier = load->has_failed_tier || done.result != -ENOENT;
    return look(load, load->tier + 1);
  }
  load->found = done;
  load->state = Load::State::kFound;
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (const auto& [waiter, index] : load->waiters)
    if (const auto ticket = waiter.lock(); ticket && !ticket->is_finished) {
      if (ticket->states[index] == Ticket::State::kLooking) ticket->states[index] = Ticket::State::kFound;
      tickets.push_back(ticket);
    }
  for (const auto& ticket : tickets) advance(ticket);
}

bool PrefetchController::start(const std::shared_ptr<Load>& load) {
  if (load->state != Load::State::kFound) return true;  // another ticket's
  if (load->is_void || stores_.is_changing(load->key)) {
    fail(load, &Reply::absent);
    return true;
  }
  const uint64_t bytes = load->found.payload_bytes;
  if (in_flight_bytes_ > 0 && in_flight_bytes_ + bytes > settings_.in_flight_bytes_max) {
    if (hung_bytes_ < in_flight_bytes_) return false;
    no_room_.add();  // a tier that hangs has all of it
    fail(load, &Reply::failed);
    return true;
  }
  const int result = maru_alloc_with_metadata(client_, bytes, metadata_bytes_of(load->found.note), 1, &load->buffer);
  if (result != 0) {
    no_room_.add();
    fail(load, &Reply::failed);
    return true;
  }
  load->has_buffer = load->tier_has_memory = true;
  load->state = Load::State::kLoading;
  load->attributes_room.resize(load->found.attributes_bytes);
  in_flight_bytes_ += bytes;
  in_flight_.set(in_flight_bytes_);
  TierOperation operation;
  operation.request.kind = MARU_TIER_LOAD;
  operation.request.key = load->key.data();
  operation.request.key_bytes = uint32_t(load->key.size());
  operation.request.attributes = load->attributes_room.data();
  operation.request.attributes_bytes = uint32_t(load->attributes_room.size());
  operation.request.payload = load->buffer.data;
  operation.request.payload_bytes = bytes;
  operation.answered = [this, load](const maru_tier_completion& done) {
    load->done = done;
    if (done.result == -ETIMEDOUT && !std::exchange(load->is_hung, true)) hung_bytes_ += load->found.payload_bytes;
    if (done.result != 0 && load->state == Load::State::kLoading)
      fail(load, done.result == -ENOENT ? &Reply::absent : &Reply::failed);
  };
  operation.released = [this, load] { released(load); };
  slots_[load->tier]->submit(std::move(operation));
  return true;
}

// The tier is done with the pages: they are published, or given back.
void PrefetchController::released(const std::shared_ptr<Load>& load) {
  load->tier_has_memory = false;
  in_flight_bytes_ -= load->found.payload_bytes;
  if (load->is_hung) hung_bytes_ -= load->found.payload_bytes;
  in_flight_.set(in_flight_bytes_);
  if (load->state == Load::State::kEnded) return drop_buffer(*load);
  if (!is_proven(*load)) {
    unproven_.add();
    stores_.forget_in(*slots_[load->tier], load->key);
    fail(load, &Reply::failed);
  } else if (load->is_void || (load->attributes.expires_ms != 0 && load->attributes.expires_ms <= unix_ms())) {
    fail(load, &Reply::absent);
  } else {
    load->state = Load::State::kLoaded;
    ready_.push_back(load);
    work();
  }
  pump();
}

bool PrefetchController::is_proven(Load& load) const {
  if (load.done.payload_bytes != load.found.payload_bytes || load.done.attributes_bytes > load.attributes_room.size())
    return false;
  auto read = decode_attributes(std::string_view(load.attributes_room).substr(0, load.done.attributes_bytes), load.key);
  if (!read || read->payload_bytes != load.found.payload_bytes ||
      read->metadata.size() != metadata_bytes_of(load.found.note) ||
      payload_checksum(load.buffer.data, read->payload_bytes) != read->payload_checksum)
    return false;
  load.attributes = std::move(*read);
  return true;
}

// Publishing one block lets its children be published; a list instead of a recursion, since chains are long.
void PrefetchController::work() {
  if (is_working_) return;
  is_working_ = true;
  while (!ready_.empty()) {
    const auto load = std::move(ready_.front());
    ready_.pop_front();
    if (load->state == Load::State::kLoaded) publish(load);
  }
  is_working_ = false;
}

void PrefetchController::publish(const std::shared_ptr<Load>& load) {
  const auto tickets = wanting(*load);
  if (tickets.empty()) return detach(load);
  const auto own = split_entry_key(load->key);
  const auto parent = split_entry_key(load->attributes.parent);
  if (load->is_void || (parent && parent->scope != own->scope)) return fail(load, &Reply::failed);
  maru_key parent_key = {};
  if (parent) parent_key = {parent->data.data(), uint32_t(parent->data.size()), parent->kind, load->wanted.tenant};
  const maru_metadata metadata = {load->attributes.metadata.data(), uint32_t(load->attributes.metadata.size()), 0};
  maru_store_options options = {};
  options.size = sizeof(options);
  options.parent_key = parent ? &parent_key : nullptr;
  options.ttl_ms =
      load->attributes.expires_ms == 0 ? 0 : std::max<int64_t>(int64_t(load->attributes.expires_ms - unix_ms()), 1);
  options.priority = load->attributes.priority;
  options.content_type = load->attributes.content_type;
  options.metadata = metadata.bytes > 0 ? &metadata : nullptr;
  const maru_key key = load->wanted.now();
  maru_view view = {};
  const int result = maru_store_pinned(client_, &key, &load->buffer, &options, &view);
  if (result == 0) {
    load->has_buffer = false;
    stores_.published(view.block);
    loaded_.add();
    loaded_bytes_.add(view.bytes);
    const bool is_temporary =
        std::ranges::all_of(tickets, [](const auto& ticket) { return ticket->wanted.is_temporary; });
    if (is_temporary) temporaries_.add(view.block);
    // They want its child: they have no pin on it, and hold it before the child.
    if (!load->has_waiters())
      for (const auto& ticket : tickets) keep(*ticket, view.block);
    settle(load);
    (void)maru_release(client_, &view);  // the waiting tickets have pins of their own by now
    if (is_temporary) temporaries_.let_go({view.block});
    return;
  }
  if (result == 1) return settle(load);  // another client computed it meanwhile
  if (result == -ENOLINK) {
    const auto found = loads_.find(load->attributes.parent);
    if (found != loads_.end() && found->second != load) {
      found->second->children.push_back(load);
      return;
    }
    parent_gone_.add();
  }
  fail(load, &Reply::failed);
}

void PrefetchController::settle(const std::shared_ptr<Load>& load) {
  load->state = Load::State::kEnded;
  loads_.erase(load->key);
  drop_buffer(*load);
  for (auto& child : std::exchange(load->children, {})) ready_.push_back(std::move(child));
  tell_waiters(*load, true, &Reply::loaded);
}

void PrefetchController::fail(const std::shared_ptr<Load>& load, uint32_t Reply::* why) {
  if (load->state == Load::State::kEnded) return;
  load->state = Load::State::kEnded;
  if (const auto found = loads_.find(load->key); found != loads_.end() && found->second == load) loads_.erase(found);
  (why == &Reply::absent ? absent_ : failed_).add();
  drop_buffer(*load);
  // They ask for their parent again, and find neither it nor a load of it.
  for (auto& child : std::exchange(load->children, {})) ready_.push_back(std::move(child));
  tell_waiters(*load, false, why);
  work();
}

void PrefetchController::tell_waiters(Load& load, bool is_there, uint32_t Reply::* count) {
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (const auto& [waiter, index] : std::exchange(load.waiters, {})) {
    const auto ticket = waiter.lock();
    if (!ticket || ticket->is_finished) continue;
    Ticket::State& state = ticket->states[index];
    if (Ticket::is_settled(state)) continue;  // behind the end of a prefix, or gated
    const bool is_pinned = is_there && pin(*ticket, load.wanted.now());
    const bool is_nowhere = !is_there && count == &Reply::absent;
    state = is_pinned ? Ticket::State::kThere : is_nowhere ? Ticket::State::kAbsent : Ticket::State::kMissing;
    if (ticket->ends_at(state)) ticket->end_behind(index);
    ++(ticket->reply.*(is_pinned == is_there ? count : &Reply::failed));
    if (is_pinned) ticket->reply.loaded_bytes += load.found.payload_bytes;
    tickets.push_back(ticket);
  }
  for (const auto& ticket : tickets) advance(ticket);
}

// The tickets that wait for the load. Without such a ticket: the tickets that wait for its children, or for their children.
std::vector<std::shared_ptr<PrefetchController::Ticket>> PrefetchController::wanting(const Load& load) const {
  std::vector<std::shared_ptr<Ticket>> tickets;
  std::vector<const Load*> looked_at = {&load};
  while (!looked_at.empty()) {
    const Load& one = *looked_at.back();
    looked_at.pop_back();
    const size_t before = tickets.size();
    for (const auto& [waiter, index] : one.waiters)
      if (const auto ticket = waiter.lock();
          ticket && !ticket->is_finished && !Ticket::is_settled(ticket->states[index]))
        tickets.push_back(ticket);
    if (tickets.size() > before) continue;
    for (const auto& child : one.children) looked_at.push_back(child.get());
  }
  return tickets;
}

// The pages go back as soon as the tier is done with them.
void PrefetchController::drop_buffer(Load& load) {
  if (!load.has_buffer || load.tier_has_memory) return;
  (void)maru_abort(client_, &load.buffer);
  load.has_buffer = false;
}

// Detaches a load that no ticket will begin any more. Blocks that wait for it as their parent wait no longer.
void PrefetchController::leave(const std::shared_ptr<Load>& load) {
  if (load && load->state <= Load::State::kFound && !load->has_waiters()) detach(load);
}

void PrefetchController::detach(const std::shared_ptr<Load>& load) {
  load->state = Load::State::kEnded;
  discarded_.add();
  if (const auto found = loads_.find(load->key); found != loads_.end() && found->second == load) loads_.erase(found);
  for (auto& child : std::exchange(load->children, {})) ready_.push_back(std::move(child));
  drop_buffer(*load);
  work();
}

void PrefetchController::void_load(const std::string& key) {
  if (const auto found = loads_.find(key); found != loads_.end()) found->second->is_void = true;
}

}  // namespace maru::tierd
