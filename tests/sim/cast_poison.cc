// The part of marud in bad memory, as daemon/pool/removal/poison.cc plays it. One CAS makes a page POISONED; the rest of its
// block goes when it has neither pins nor children.
#include "cast.h"

#include "libmaru/shm/recovery/poison.h"
#include "libmaru/shm/region/page_run.h"

#include <array>

namespace maru::sim {
namespace {

bool happened;
std::array<bool, kWorldPages> reported;
PoisonKnowledge knowledge;  // of lane 0's marud

PageWord word_of(uint32_t page) { return {world().block(page).word.load_acquire()}; }

constexpr unsigned kEveryClient = (1u << kWorldLanes) - 2;

bool is_below(uint32_t page, PageRef above) {
  return PageRef::from_bits(world().block(page).parent.load_acquire()) == above;
}

}  // namespace

bool take_descendants(Client& who, PageRef above, const PoisonKnowledge& known) {
  bool none = true;
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word = word_of(page);
    const PageRef ref = PageRef::of(page, word.generation());
    if (word.is(PageState::kPoisoned)) {
      none &= known.was_let_go[page] || !is_below(page, above) || page == above.page();
      continue;
    }
    const bool counts = word.is(PageState::kSealed) || word.is(PageState::kReady) || word.is(PageState::kRetiring) ||
                        word.is(PageState::kRetired);
    if (!counts || !is_below(page, above)) continue;
    none = false;
    if (word.is(PageState::kSealed) || word.is(PageState::kRetired)) continue;
    if (word.is(PageState::kReady) && word.children() != 0) take_descendants(who, ref, known);
    shm::retire_ref(who.context, ref);
  }
  return none;
}

bool has_filler(uint32_t page, const PoisonKnowledge& known) {
  for (unsigned process = 1; process < kWorldLanes; ++process)
    if ((known.filled_by[page] >> process & 1) != 0 && !process_ended(process)) return true;
  return false;
}

bool poisons() { return happened; }
bool is_poisoned_by_scenario(uint32_t page) { return reported[page]; }
bool is_poison_let_go(uint32_t page) { return knowledge.was_let_go[page]; }

void begin_poison(bool of_schedule) {
  knowledge = {};
  knowledge.filled_by.fill(kEveryClient);
  if (!of_schedule) return;
  happened = false;
  reported.fill(false);
}

bool poison_as(Client& who, uint32_t page, PoisonKnowledge& known) {
  happened = reported[page] = true;
  for (uint32_t tries = 0; tries < 4; ++tries) {
    const shm::PoisonResult result = shm::poison_page(who.context, page);
    note("marud poisons page %u: %u", page, unsigned(result.status));
    if (result.status != shm::PoisonStatus::kPoisoned) {
      yield();
      continue;
    }
    known.is_held[page] = true;
    known.filled_by[page] = result.before.is(PageState::kReserved) ? 1u << result.before.lane().lane : 0;
    return true;
  }
  return false;
}

void poison(uint32_t page) { poison_as(marud(), page, knowledge); }

void settle_poison(bool at_rest) {
  for (uint32_t rounds = at_rest ? 2 * kWorldPages : 1; rounds > 0; --rounds) {
    // A run with a bad page in it that was published meanwhile, or whose head the marud before did not get to.
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      if (!word_of(page).is_findable(word_of(page).generation()) || !shm::has_poisoned_tail(world(), page)) continue;
      reported[page] = true;
      if (shm::poison_page(marud().context, page).status == shm::PoisonStatus::kPoisoned) knowledge.filled_by[page] = 0;
    }
    for (uint32_t page = 0; page < kWorldPages; ++page) {
      const PageWord word = word_of(page);
      if (!word.is(PageState::kPoisoned) || knowledge.was_let_go[page]) continue;
      const bool has_none_below = take_descendants(marud(), PageRef::of(page, word.generation()), knowledge);
      if (!shm::is_poison_unpinned(marud().context, shm::LaneSet::in_use(world()), page) || !has_none_below) continue;
      if (!at_rest && has_filler(page, knowledge)) continue;
      PageRef parent;
      shm::let_poison_go(world(), page, &parent);
      knowledge.was_let_go[page] = true;
      if (!parent.is_none()) recount(parent);
    }
    free_handed_over();
  }
}

}  // namespace maru::sim
