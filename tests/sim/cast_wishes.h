// Regions that pass between hosts: a marud with too little asks another one for a region, which gives one up in its turns, and
// the first taker gets a region that nobody rents. As daemon/pool/hosts and memory/grants.cc do, over
// libmaru/shm/recovery/host_wish.h.
//
// Beside what holds in every schedule: a region is looked after by one host at a time.
#pragma once

#include <cstdint>

namespace maru::sim {

// For a new schedule; nobody asks for anything in one that has not begun so. `evict`: of a childless page, by marud of this
// host.
void begin_wishes(void (*evict)(uint32_t host, uint32_t page));
// This host drains its part of the pool, as memory/drain.cc does: one round; or it does so no more.
void drain_part(uint32_t host);
void cancel_drain(uint32_t host);
// No schedule of wishes any more.
void forget_wishes();

// A part of a turn of marud of this host, in this life of it: looks for a region that nobody rents, asks, answers.
void share_regions(uint32_t host, uint32_t generation);
// What hosts have left whose slot is FREE, as Hosts::look_at_regions() does.
void inherit_left(uint32_t host);
// Marud of this host leaves, and says so after this: what is empty is nobody's, the rest may be inherited.
void leave_parts(uint32_t host);
// The next marud of this host: what the last one was emptying is settled.
void adopt_parts(uint32_t host);
// The region is looked after by `heir` from now on, since its host is dead and `heir` has proof of that.
void inherit_from_the_dead(uint32_t region, uint32_t heir);
// At rest: what was asked of a live host is answered.
void answer_last_wish(uint32_t host);

}  // namespace maru::sim
