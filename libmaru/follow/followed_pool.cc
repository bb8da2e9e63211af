#include "libmaru/follow/followed_pool.h"

#include "libmaru/shm/blocks/metadata.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace maru::follow {
namespace {

using format::FeedState;
using shm::PageRef;
using shm::PageState;
using shm::PageWord;

constexpr uint32_t kRequestId = 1;

Result<wire::Packet> ask(const KeptDescriptor& socket, const std::string& pool, uint32_t timeout_ms) {
  wire::FollowRequest request = {};
  if (!wire::is_pool_name(pool)) return failure(EINVAL, "follow a pool by what is no name of a pool: \"" + pool + "\"");
  std::memcpy(request.pool, pool.data(), pool.size());
  const wire::Deadline deadline(timeout_ms);
  const auto packet = wire::encode(wire::Type::kFollow, kRequestId, 0, wire::bytes_of(request));
  if (auto sent = wire::send_packet(socket, packet, -1, timeout_ms); !sent) return tl::unexpected(sent.error());
  for (;;) {
    auto reply = wire::receive_packet(socket, std::max(1u, deadline.left_ms()));
    // A marud that does not know the message ends the connection without a word.
    if (!reply && reply.error().code == ECONNRESET)
      return failure(EPROTO, "follow a pool: marud ended the connection; one from before feeds does so");
    if (!reply) return tl::unexpected(reply.error());
    const auto header = wire::decode_reply(reply->bytes);
    if (!header) return failure(EPROTO, header.error().doing);
    if (header->request_id != kRequestId) continue;  // said unasked
    if (header->status == 0) return std::move(*reply);
    const auto why = wire::payload_of(reply->bytes);
    return failure(-header->status, std::string(reinterpret_cast<const char*>(why.data()), why.size()));
  }
}

Result<Mapping> map(const FileDescriptor& fd, uint64_t bytes, uint64_t alignment) {
  alignment = std::max<uint64_t>(alignment, 4096);
  if (!std::has_single_bit(alignment)) return failure(EPROTO, "use the alignment that marud names");
  return Mapping::map_shared_aligned(fd.get(), (bytes + alignment - 1) / alignment * alignment, PROT_READ, alignment);
}

}  // namespace

Result<std::unique_ptr<FollowedPool>> FollowedPool::open(const KeptDescriptor& socket, const std::string& pool,
                                                         uint32_t timeout_ms, bool reads_metadata) {
  auto packet = ask(socket, pool, timeout_ms);
  if (!packet) return tl::unexpected(packet.error());
  const auto reply = wire::read_exactly<wire::FollowReply>(wire::payload_of(packet->bytes));
  const uint32_t came =
      (packet->fd.is_open() ? 1u : 0u) + (packet->second.is_open() ? 1u : 0u) + (packet->third.is_open() ? 1u : 0u);
  if (!reply || reply->descriptors != came || came < 2) return failure(EPROTO, "read the answer to following");

  auto followed = std::unique_ptr<FollowedPool>(new FollowedPool);
  auto control = map(packet->second, reply->control_bytes, reply->control_alignment);
  if (!control) return tl::unexpected(control.error());
  followed->control_ = std::move(*control);
  if (const char* problem =
          shm::ControlRegion::attach(followed->control_.bytes(), reply->pool_bytes, &followed->region_))
    return failure(EBADMSG, std::string("read the control region: ") + problem);
  auto feed = map(packet->fd, reply->feed_bytes, 4096);
  if (!feed) return tl::unexpected(feed.error());
  followed->feed_mapping_ = std::move(*feed);
  if (const char* problem = shm::FeedView::attach(followed->feed_mapping_.bytes(), followed->region_.pages(),
                                                  followed->region_.header().uuid, &followed->feed_))
    return failure(EBADMSG, std::string("read the feed: ") + problem);
  followed->pages_fd_ = KeptDescriptor(std::move(came == 3 ? packet->third : packet->second));
  followed->pages_offset_ = reply->pages_offset;
  followed->pages_alignment_ = reply->map_alignment;
  followed->reads_metadata_ = reads_metadata;
  return followed;
}

FeedState FollowedPool::state() const {
  return FeedState(feed_.header().state.load_acquire());  // [pairs feed.state]
}

bool FollowedPool::is_there(PageRef ref) const {
  const PageWord word{region_.block(ref.page()).word.load_acquire()};  // [pairs page.word]
  return word.is_findable(ref.generation());
}

std::string FollowedPool::tenant_name(uint64_t id) const {
  const uint32_t records = region_.parameters().tenants;
  for (uint32_t probe = 0; id != 0 && probe < std::min(records, limits::kTenantProbes); ++probe) {
    const format::TenantRecord& record = region_.tenant(uint32_t((id + probe) % records));
    if (record.id.load_acquire() != id) continue;
    const uint64_t bytes = std::min<uint64_t>(record.name_bytes.load_acquire(), limits::kTenantNameMax);
    uint64_t words[limits::kTenantNameMax / 8];
    for (size_t i = 0; i < std::size(words); ++i) words[i] = record.name[i].load_acquire();
    if (record.id.load_acquire() != id) return {};  // another tenant's by now
    return {reinterpret_cast<const char*>(words), bytes};
  }
  return {};
}

void FollowedPool::describe(FollowedBlock& block, uint64_t length, uint64_t shape, uint64_t detail_kind) const {
  block.length = format::payload_bytes_of(length);
  block.depth = uint32_t(shape >> 32);
  block.content_type = uint32_t(detail_kind >> 56);
  block.priority = uint32_t(detail_kind);
}

// Of a page; null: the pages cannot be mapped. They are mapped when the first metadata is read.
const std::byte* FollowedPool::page_bytes(uint32_t page) {
  const uint64_t size = region_.page_bytes();
  if (!pages_.is_mapped()) {
    const uint64_t alignment = std::max<uint64_t>(pages_alignment_, 4096);
    const uint64_t bytes = (pages_offset_ + region_.pages() * size + alignment - 1) / alignment * alignment;
    if (!std::has_single_bit(alignment) || pages_fd_.get() < 0) return nullptr;
    auto mapped = Mapping::map_shared_aligned(pages_fd_.get(), bytes, PROT_READ, alignment);
    if (!mapped) return nullptr;
    pages_ = std::move(*mapped);
  }
  return pages_.data() + pages_offset_ + page * size;
}

// The key, and the metadata behind it: marud maps no pages, so that the ring cannot have it. The copy counts if the block is
// there afterwards.
void FollowedPool::take_bytes(FollowedBlock& block, const std::byte* key, uint64_t metadata_bytes) {
  const uint32_t page = block.ref.page();
  const uint64_t run_bytes = region_.run_pages(page) * region_.page_bytes();
  const shm::MetadataPlace place = reads_metadata_ && metadata_bytes != 0
                                       ? shm::metadata_place(block.length, metadata_bytes, run_bytes)
                                       : shm::MetadataPlace{};
  block.bytes = std::make_unique<std::byte[]>(block.key_bytes + place.bytes);
  std::memcpy(block.bytes.get(), key, block.key_bytes);
  if (place.bytes == 0 && place.fits) return;
  const std::byte* const bytes = place.fits ? page_bytes(page) : nullptr;
  if (bytes) std::memcpy(block.bytes.get() + block.key_bytes, bytes + place.offset, place.bytes);
  block.has_lost_metadata = !bytes || !is_there(block.ref);
  if (!block.has_lost_metadata) block.metadata_bytes = uint32_t(place.bytes);
}

bool FollowedPool::read_known(uint32_t page, FollowedBlock* ret_block) {
  const uint32_t mark = feed_.table(page).load_acquire();  // [pairs feed.table]
  if (mark == 0) return false;
  const format::BlockLine& line = region_.block(page);
  const PageWord word{line.word.load_acquire()};  // [pairs page.word]
  if (!(word.is(PageState::kReady) || word.is(PageState::kRetiring)) || format::feed_mark(word.generation()) != mark)
    return false;
  FollowedBlock& block = *ret_block;
  block.ref = PageRef::of(page, word.generation());
  block.parent = PageRef::from_bits(line.parent.load_acquire());
  if (!block.parent.is_none() && !region_.is_page(block.parent)) return false;
  const format::DetailLine& detail = region_.detail(page);
  const uint64_t length = line.length.load_acquire();
  describe(block, length, line.shape.load_acquire(), detail.kind.load_acquire());
  block.stored_ms = detail.stored_ms.load_acquire();
  block.expires_ms = line.expires_ms.load_acquire();
  if (!shm::read_key(region_, block.ref, &key_)) return false;
  block.tenant = key_.tenant;
  block.key_kind = key_.kind;
  block.key_bytes = key_.size;
  take_bytes(block, key_.data, format::metadata_bytes_of(length));
  return is_there(block.ref);  // after all that was read
}

FollowedBlock FollowedPool::block_of(const shm::FeedRecord& record) {
  FollowedBlock block;
  block.ref = record.block;
  block.parent = record.parent;
  block.tenant = record.tenant;
  block.stored_ms = record.stored_ms;
  block.expires_ms = record.expires_ms;
  block.key_kind = record.key_kind;
  block.key_bytes = record.key_bytes;
  describe(block, record.length, record.shape, record.detail_kind);
  take_bytes(block, record.key, format::metadata_bytes_of(record.length));
  return block;
}

}  // namespace maru::follow
