#include "libmaru/shm/audit/checks.h"
#include "libmaru/shm/blocks/metadata.h"

#include <algorithm>
#include <cstring>

namespace maru::shm::audit_checks {

// -- pages ------------------------------------------------------------------------------------------------------------

static uint32_t said_run_pages(const Audit& a, uint32_t page) { return uint32_t(seen(a.region.block(page).shape)); }
static uint32_t room_in_region(const Audit& a, uint32_t page) {
  return a.region.region_pages() - (page & (a.region.region_pages() - 1));
}

bool page_state(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  return uint32_t(word.state()) >= kPageStateCount && violated(f, 0, word.bits);
}

bool page_low(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  bool fits = true;
  switch (word.state()) {
    case PageState::kOut:
    case PageState::kFree:
    case PageState::kPoisoned: fits = word.low() == 0; break;
    case PageState::kReserved:
    case PageState::kSealed:
    case PageState::kRetired:
    case PageState::kRetiring: fits = word.lane().lane < a.region.lanes(); break;  // an evictor is a lane's number too
    case PageState::kReady:
      fits = word.children() < a.region.pages() && (!word.recount() || word.children() != 0);
      break;
    case PageState::kTail: break;  // kTail
  }
  return !fits && violated(f, 0, word.bits);
}

bool page_lane(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  if (!word.names_lane() || word.lane().lane >= a.region.lanes()) return false;
  if (!a.is_live(word.lane().lane)) return violated(f, 0, word.bits);
  const uint64_t identity = word.lane().lane ? seen(a.region.identity(word.lane().lane).state) : 0;
  // Lane 0 counts its generations by the epoch; a lane that shows no identity cannot be compared.
  const bool comparable = LaneState(identity & 0xFF) == LaneState::kLive;
  return comparable && identity >> 48 != word.lane().generation && violated(f, 0, word.bits, identity);
}

bool page_sealed(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  return word.is(PageState::kSealed) && a.is_live(word.lane().lane) && violated(f, 0, word.bits);
}

// A page whose word is the same TAIL before and after was that TAIL all the time, so its head was held all the time.
bool tail(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!word.is(PageState::kTail)) return false;
  const uint32_t distance = word.low();
  if (distance == 0 || distance > (page & (a.region.region_pages() - 1))) return violated(f, 0, word.bits);
  const uint32_t said = said_run_pages(a, page - distance);
  const PageWord head = a.page_word(page - distance);
  const bool held =
      is_block(head) || head.is(PageState::kReserved) || head.is(PageState::kSealed) || head.is(PageState::kPoisoned);
  return (!held || said <= distance) && a.page_word(page) == word && violated(f, 0, word.bits, head.bits, said);
}

bool run_length(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_block(word) && !word.is(PageState::kSealed)) return false;
  const uint32_t said = said_run_pages(a, page);
  return (said == 0 || said > room_in_region(a, page)) && a.page_word(page) == word && violated(f, 0, word.bits, said);
}

bool run_tails(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const uint32_t said = said_run_pages(a, page);
  if (!is_visible(word) || said > room_in_region(a, page)) return false;
  for (uint32_t i = 1; i < said; ++i) {
    const PageWord further = a.page_word(page + i);
    if ((further.is(PageState::kTail) && further.low() == i) || further.is(PageState::kPoisoned)) continue;
    return a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, further.bits, said);
  }
  return false;
}

// -- blocks -----------------------------------------------------------------------------------------------------------

bool block_length(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint64_t length = format::payload_bytes_of(seen(a.region.block(page).length));
  return length > uint64_t(a.region.run_pages(page)) * a.region.page_bytes() &&
         a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, length);
}

bool block_metadata(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint64_t length = seen(a.region.block(page).length);
  const uint64_t payload = format::payload_bytes_of(length), metadata = format::metadata_bytes_of(length);
  const uint64_t run_bytes = uint64_t(a.region.run_pages(page)) * a.region.page_bytes();
  if (metadata == 0 || payload > run_bytes) return false;  // or else it is the length of the payload that is wrong
  const bool fits = a.region.has_metadata() && metadata_place(payload, metadata, run_bytes).fits;
  return !fits && a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, length);
}

bool block_detail(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const DetailLine& detail = a.region.detail(page);
  const uint64_t kind = seen(detail.kind), owner = seen(detail.owner);
  const bool fits =
      (kind >> 32 & 0xFF'FFFF) == 0 && owner >> 28 == 0 && LaneId::from_low(uint32_t(owner)).lane < a.region.lanes();
  return !fits && a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, kind, owner);
}

// Whether a key reference (DetailLine::key) fits, with a long key's cell. *ret_owner: of that cell.
static bool key_fits(const Audit& a, PageRef ref, uint64_t key, uint64_t* ret_owner) {
  const uint64_t kind = key >> 56, size = key >> 32 & 0xFF'FFFF, extent = uint32_t(key);
  if (kind > 2 || size == 0 || size > limits::kKeyBytesMax) return false;
  if ((kind == 1 && size != 16) || (kind == 2 && size != 32)) return false;
  if (extent == 0) return size <= a.region.parameters().key_inline_bytes;
  if (extent > a.region.parameters().key_extents) return false;
  *ret_owner = seen(a.region.key_extent_owner(extent - 1));
  return *ret_owner == ref.bits;
}

bool block_key(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint64_t key = seen(a.region.detail(page).key);
  uint64_t owner = 0;
  return !key_fits(a, PageRef::of(page, word.generation()), key, &owner) &&
         a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, key, owner);
}

static Digest digest_of_key(const uint64_t* secret, const KeyBytes& key) {
  uint64_t words[4];
  std::memcpy(words, key.data, sizeof(words));  // the buffer is larger than any ready-made digest
  if (key.kind == 1) return digest_of_128(secret, words[0], words[1], key.tenant);
  if (key.kind == 2) return digest_of_256(secret, words, key.tenant);
  return digest_of_bytes(secret, {key.data, key.size}, key.tenant);
}

bool block_digest_of_key(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const PageRef ref = PageRef::of(page, word.generation());
  uint64_t owner = 0;
  if (!is_visible(word) || !key_fits(a, ref, seen(a.region.detail(page).key), &owner)) return false;
  KeyBytes key;
  const Digest said = block_digest(a.region, page);
  if (!read_key(a.region, ref, &key) || digest_of_key(a.region.secret(), key) == said) return false;
  return a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, said.lo, said.hi);
}

// The parent's word, if the reference names a page that can be a parent; otherwise a word that is none.
static PageWord parent_word(const Audit& a, uint32_t page, PageRef parent) {
  return a.region.is_page(parent) && parent.page() != page ? a.page_word(parent.page()) : PageWord{};
}

bool block_parent(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const PageRef parent = parent_of(a, page);
  if (!is_block(word) || parent.bits == 0) return false;
  const PageWord above = parent_word(a, page, parent);
  const bool good = (above.is(PageState::kReady, parent.generation()) && above.children() != 0) ||
                    above.is(PageState::kPoisoned, parent.generation());
  const PageWord after = a.page_word(page);
  return !good && is_block(after) && after.generation() == word.generation() &&
         violated(f, 0, word.bits, parent.bits, above.bits);
}

bool block_chain(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const PageRef parent = parent_of(a, page);
  uint32_t depth = 0;
  uint64_t chain = 0;
  if (parent.bits != 0) {
    if (!parent_word(a, page, parent).is(PageState::kReady, parent.generation())) return false;  // kBlockParent
    depth = uint32_t(seen(a.region.block(parent.page()).shape) >> 32) + 1;
    chain = seen(a.region.block(parent.page()).chain);
  }
  const BlockLine& line = a.region.block(page);
  const uint64_t shape = seen(line.shape), sum = seen(line.chain);
  const PlainDigest plain = unpermute(a.region.secret(), block_digest(a.region, page));
  const bool agrees = shape >> 32 == depth && depth <= limits::kChainDepthMax &&
                      sum == chain + chain_term(a.region.secret(), plain, depth);
  return !agrees && a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, shape, sum);
}

bool block_expiry(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const PageRef parent = parent_of(a, page);
  if (!is_visible(word) || parent.bits == 0) return false;
  if (!parent_word(a, page, parent).is(PageState::kReady, parent.generation())) return false;  // kBlockParent
  const uint64_t own = seen(a.region.block(page).expires_ms), above = seen(a.region.block(parent.page()).expires_ms);
  return above != 0 && (own == 0 || own > above) && a.page_word(page).is_findable(word.generation()) &&
         violated(f, 0, word.bits, own, above);
}

bool children_at_least(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint32_t said = word.is(PageState::kReady) ? word.children() : 0;
  if (said >= a.children[page]) return false;
  if (a.request.mode == AuditMode::kExact) return violated(f, 0, word.bits, a.children[page]);
  if (a.doubt_count < kDoubtsMax) a.doubts[a.doubt_count++] = {PageRef::of(page, word.generation()), {}, {}, {}};
  return false;
}

void pass_over_doubts(Audit& a, ChildPass Doubt::* pass, uint64_t from, uint64_t to) {
  const auto end = a.doubts.begin() + a.doubt_count;
  for (uint64_t index = from; index < to; ++index) {
    const auto page = uint32_t(index);
    const PageRef parent = parent_of(a, page);
    const auto doubt = std::lower_bound(a.doubts.begin(), end, parent,
                                        [](const Doubt& d, PageRef p) { return d.parent.bits < p.bits; });
    const PageWord word = a.page_word(page);
    if (doubt == end || doubt->parent != parent || !is_block(word)) continue;
    ChildPass& seen_children = (*doubt).*pass;
    ++seen_children.count;
    seen_children.lives += folded_product(PageRef::of(page, word.generation()).bits, 0x9e37'79b9'7f4a'7c15);
  }
}

void look_at_doubts(Audit& a) {
  for (uint32_t i = 0; i < a.doubt_count; ++i) a.doubts[i].between = a.page_word(a.doubts[i].parent.page());
}

bool is_confirmed(const Doubt& doubt, Finding* f) {
  const PageWord word = doubt.between;
  *f = {Invariant::kChildrenAtLeast, 0, doubt.parent.page(), {}};
  return doubt.before == doubt.after && word.is_findable(doubt.parent.generation()) &&
         (word.is(PageState::kReady) ? word.children() : 0) < doubt.before.count &&
         violated(f, 0, word.bits, doubt.before.count);
}

bool children_exact(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  if (!word.is(PageState::kReady) || word.children() <= a.children[index]) return false;
  // A POISONED child counts until marud knows that it has no pin and no block below it.
  uint32_t poisoned = 0;
  if (a.child_passes_left > 0) {
    --a.child_passes_left;
    for (uint32_t page = 0; page < a.region.pages(); ++page)
      poisoned += a.page_word(page).is(PageState::kPoisoned) &&
                  parent_of(a, page) == PageRef::of(uint32_t(index), word.generation());
  }
  return word.children() > a.children[index] + poisoned && violated(f, 0, word.bits, a.children[index], poisoned);
}

// A block with children may have no entry: docs/format.md, "Store", a publisher that cannot withdraw it.
bool block_registered(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  if (!word.is(PageState::kReady) || word.children() != 0 || (a.registered[index / 64] >> index % 64 & 1) != 0)
    return false;
  return !is_pinned(a.region, a.live, uint32_t(index)) && violated(f, 0, word.bits);
}

// How many children each page has that is still in the life that they name.
void count_children(Audit& a, uint64_t from, uint64_t to) {
  for (uint64_t index = from; index < to; ++index) {
    const auto page = uint32_t(index);
    const PageRef parent = parent_of(a, page);
    if (parent.is_none() || !a.region.is_page(parent) || !is_block(a.page_word(page))) continue;
    a.children[parent.page()] += a.page_word(parent.page()).generation() == parent.generation();
  }
}

}  // namespace maru::shm::audit_checks
