// After a loss of power: which blocks still have the bytes that were stored.
//
// The last writes may have been in the processor's caches, so memory now has some of their lines and lacks others. The bytes of
// a block prove themselves by its checksum. The auditor proves the bookkeeping with the invariants that hold at rest: the
// processes of that boot are dead, their holdings were taken back, and no client works yet. marud repairs the violations
// (restart/repair.cc). It does not believe a pool that has violations even after repairs.
#include "daemon/pool/restart/restart.h"

#include "daemon/memory/device_content.h"
#include "libmaru/shm/blocks/hash.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace maru::daemon {
namespace {

constexpr uint64_t round_down(uint64_t value, uint64_t multiple) { return value - value % multiple; }
constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return round_down(value + multiple - 1, multiple); }

}  // namespace

// Region by region, since no run leaves its region; within a region the threads take pages as they come. ret bad: one byte for
// each page, so that threads do not share a word. Unreadable memory takes the pages that lie in it along, with the blocks
// there; the rest of those regions is judged as before.
Result<void> Restart::verify_payloads(const Pool::VerifyProgress& progress, std::span<uint8_t> bad,
                                      Pool::Verified& verified, std::vector<uint32_t>& ret_unreadable) const {
  const uint64_t alignment = core_.device->map_alignment();
  const uint64_t region_bytes = core_.region.region_pages() * core_.region.page_bytes();
  std::atomic<uint64_t> blocks{0}, bytes_read{0};
  for (uint32_t index = 0; index < core_.region.regions(); ++index) {
    const uint32_t first = index * core_.region.region_pages();
    bool has_block = false;
    for (uint32_t page = first; page < first + core_.region.region_pages() && !has_block; ++page)
      has_block = core_.word(page).is(PageState::kReady);
    const auto goes_on = [&] {
      return !progress || progress(index * region_bytes, core_.pages() * core_.region.page_bytes());
    };
    const auto cut_off = [&] { return failure(ECANCELED, "verify pool \"" + core_.config.name + "\""); };
    if (!has_block && !goes_on()) return cut_off();
    if (!has_block) continue;
    const uint64_t begin = core_.pages_at() + index * region_bytes;
    const uint64_t map_begin = round_down(begin, alignment), map_end = round_up(begin + region_bytes, alignment);
    auto mapped = Mapping::map_shared(core_.device->fd(), map_begin, map_end - map_begin, PROT_READ);
    if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + core_.device->name());
    FaultGuard guard;
    if (!guard.begin(mapped->data(), mapped->size(), alignment))
      return failure(ENFILE, "guard " + core_.device->name());
    if (!goes_on()) return cut_off();
    const std::byte* start = mapped->data() + (begin - map_begin);
    in_parallel(core_.region.region_pages(), 16, [&](uint64_t i) {
      const auto page = uint32_t(first + i);
      // The meter has one thread, so it does not count these.
      if (!PageWord{core_.region.block(page).word.load_acquire()}.is(PageState::kReady)) return;  // [pairs page.word]
      const uint64_t length =
          format::payload_bytes_of(core_.region.block(page).length.load_relaxed());  // there is no writer
      const shm::MetadataPlace metadata = shm::metadata_of(core_.region, page);
      const uint64_t checksum = core_.region.detail(page).checksum.load_relaxed();
      const bool has_length =
          length != 0 && length <= core_.region.run_pages(page) * core_.region.page_bytes() && metadata.fits;
      blocks.fetch_add(1, std::memory_order_relaxed);
      bytes_read.fetch_add(has_length ? length + metadata.bytes : 0, std::memory_order_relaxed);
      bad[page] = !has_length || checksum == 0;
      if (bad[page]) return;
      const std::byte* payload = start + i * core_.region.page_bytes();
      shm::ReadBlock read{shm::block_digest(core_.region, page), length,
                          shm::payload_checksum({payload, size_t(length)})};
      if (metadata.bytes != 0)
        read.metadata_checksum = shm::payload_checksum({payload + metadata.offset, metadata.bytes});
      bad[page] = !shm::fits_checksum(core_.region, page, read);
    });
    if (guard.has_fired())
      return failure(EIO, "verify pool \"" + core_.config.name + "\": found memory that cannot be read in region " +
                              std::to_string(index) + " of " + core_.device->name());
    for (const BadMemory& lost : guard.bad_memory()) {
      const uint64_t from = std::max(map_begin + lost.offset, begin);
      const uint64_t to = std::min(map_begin + lost.offset + lost.bytes, begin + region_bytes);
      for (uint64_t at = round_down(from - begin, core_.region.page_bytes()); begin + at < to;
           at += core_.region.page_bytes())
        ret_unreadable.push_back(uint32_t(first + at / core_.region.page_bytes()));
    }
  }
  // A block goes with any page of its run.
  for (uint32_t lost : ret_unreadable) {
    const PageWord found = core_.word(lost);
    const uint32_t head = found.is(PageState::kTail) && found.low() <= lost ? lost - found.low() : lost;
    bad[head] = 1;
  }
  verified.blocks = blocks;
  verified.bytes = bytes_read;
  if (progress) progress(core_.pages() * core_.region.page_bytes(), core_.pages() * core_.region.page_bytes());
  return {};
}

// Blocks below a bad one are of no use without it, and could not stay: leaves first. Blocks without an entry go as well: their
// publisher was between READY and the entry, and its pin was in a cache.
void Restart::drop_bad(std::span<uint8_t> bad, Pool::Verified& verified) {
  std::vector<std::pair<uint32_t, uint32_t>> blocks;  // depth, page
  for (uint64_t i = 0; i < core_.pages(); ++i)
    if (core_.word(uint32_t(i)).is(PageState::kReady))
      blocks.emplace_back(uint32_t(core_.region.block(uint32_t(i)).shape.load_relaxed() >> 32), uint32_t(i));
  std::sort(blocks.begin(), blocks.end());
  for (const auto& [depth, page] : blocks) {
    const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_relaxed());  // checked before use
    if (parent.bits == 0) continue;
    const bool is_there =
        core_.region.is_page(parent) && core_.word(parent.page()).is(PageState::kReady, parent.generation());
    if (!is_there || bad[parent.page()]) bad[page] = 1;
  }
  for (size_t i = blocks.size(); i-- > 0;) {
    const uint32_t page = blocks[i].second;
    if (!bad[page] && shm::is_registered(core_.region, page)) continue;
    const PageRef ref = PageRef::of(page, core_.word(page).generation());
    if (shm::retire_ref(core_.self, ref) != shm::RetireStatus::kRetired) continue;  // the audit says why
    queues_.remove(page);
    retired_.add(ref);
    // Before its parent's turn: the parent counts it until it is freed.
    retired_.finish_all();
    ++verified.dropped;
  }
}

Result<Pool::Verified> Restart::verify(const Pool::VerifyProgress& progress, const std::function<bool()>& turn) {
  for (uint32_t lane = 1; lane < core_.region.lanes(); ++lane)
    if (lanes_.is_live(lane) && !lanes_.records[lane].same_boot) reclaim_.begin(lane);
  // Each turn takes back a part of the rest, and every lane is taken back once.
  for (uint64_t turns = 0; turns < 64 * (core_.pages() / kLinkedPagesPerTurn + 1) * core_.region.lanes() && turn();
       ++turns) {
  }
  room_.close_bare_pages();  // of the lanes that were taken back
  Pool::Verified verified;
  std::vector<uint8_t> bad(core_.pages(), 0);
  std::vector<uint32_t> unreadable;
  if (auto looked = verify_payloads(progress, bad, verified, unreadable); !looked)
    return tl::unexpected(looked.error());
  drop_bad(bad, verified);
  // Not before their blocks are gone, so that nothing is left to let go.
  for (uint32_t page : unreadable) poison_.poison(page);
  while (poison_.step()) {  // ends: one look at the pool, in slices
  }
  const Audits::AtRest report = repair_bookkeeping(verified);
  if (report.found != 0)
    return failure(EBADMSG, "believe the bookkeeping of pool \"" + core_.config.name + "\": found " +
                                std::to_string(report.found) + " violations of its invariants after repairs, such as " +
                                report.text.substr(0, 200));
  core_.shows_boot = true;
  core_.show_host(false);
  return verified;
}

}  // namespace maru::daemon
