// A block's description of itself: its metadata, written before it is visible and read under its pin, and the facts of its
// lines.
#include "libmaru/client/client.h"
#include "libmaru/client/payload_copy.h"

#include <cerrno>
#include <cstring>

namespace maru::client {

using shm::PageRef;
using shm::PageState;
using shm::PageWord;

int Client::check_metadata_bytes(uint64_t bytes) const {
  if (bytes > limits::kMetadataBytesMax) return -E2BIG;
  return bytes != 0 && !region_.has_metadata() ? -EOPNOTSUPP : 0;
}

int Client::check_metadata(const maru_metadata* metadata) const {
  if (metadata == nullptr) return 0;
  if (metadata->reserved0 != 0 || (metadata->data == nullptr && metadata->bytes != 0)) return -EINVAL;
  return check_metadata_bytes(metadata->bytes);
}

int Client::write_metadata(const Store& what, shm::NewBlock& block) {
  if (what.metadata == nullptr) return 0;
  if (const int status = check_metadata(what.metadata); status != 0) return status;
  const PageRef own = PageRef::from_bits(what.buffer.block);
  const uint64_t run_bytes = region_.run_pages(own.page()) * region_.page_bytes();
  const shm::MetadataPlace place = shm::metadata_place(what.buffer.bytes, what.metadata->bytes, run_bytes);
  if (!place.fits) return -EMSGSIZE;
  if (place.bytes == 0) return 0;
  std::byte* const at = payload_->writable(own.page());
  if (at == nullptr) return -ENOMEM;
  // The lines that publishing reads first travel while the bytes are copied.
  shm::prefetch_publish(region_, own, what.digest);
  const maru_buffer room{at + place.offset, place.bytes, own.bits};
  if (const int status = fill(room, what.metadata->data); status != 0) return status;
  // Sums the pool's bytes: the caller's bytes may change meanwhile.
  if (region_.has_checksums() && !checksum(room.data, room.bytes, &block.metadata_checksum)) return -EHWPOISON;
  block.metadata_bytes = place.bytes;
  return 0;
}

int Client::view_metadata(const maru_view& view, maru_metadata* ret_metadata) const {
  const PageRef ref = PageRef::from_bits(view.block);
  if (!region_.is_page(ref)) return -EINVAL;
  const PageWord word{region_.block(ref.page()).word.load_acquire()};  // [pairs page.word]
  if (word.generation() != ref.generation()) return -ENOENT;
  const shm::MetadataPlace place = shm::metadata_of(region_, ref.page());
  if (!place.fits) return -EBADMSG;
  if (place.bytes != 0 && bad_pages_->meets(ref.page(), place.end())) return -EHWPOISON;
  *ret_metadata = {place.bytes != 0 ? payload_->at(ref.page()) + place.offset : nullptr, uint32_t(place.bytes), 0};
  return 0;
}

int Client::block_info(PageRef ref, maru_block_info* ret_info, maru_key_copy* ret_key) const {
  if (!region_.is_page(ref)) return -EINVAL;
  const format::BlockLine& line = region_.block(ref.page());
  const format::DetailLine& detail = region_.detail(ref.page());
  // 0 while the words of the lines are this block's.
  const auto status = [&] {
    const PageWord word{line.word.load_acquire()};  // [pairs page.word]
    if (word.is(PageState::kPoisoned, ref.generation())) return -EHWPOISON;
    return word.is_findable(ref.generation()) || word.is(PageState::kRetired, ref.generation()) ? 0 : -ENOENT;
  };
  if (const int before = status(); before != 0) return before;
  // All before the word is read again: [pairs page.word]
  const uint64_t length = line.length.load_acquire(), kind = detail.kind.load_acquire();
  const shm::MetadataPlace metadata = shm::metadata_of(region_, ref.page());
  const PageRef parent = PageRef::from_bits(line.parent.load_acquire());
  maru_block_info info{};
  info.bytes = std::min(format::payload_bytes_of(length), region_.run_pages(ref.page()) * region_.page_bytes());
  info.metadata_bytes = uint32_t(metadata.bytes);
  info.depth = uint32_t(line.shape.load_acquire() >> 32);
  info.parent = parent.is_none() ? 0 : parent.bits;
  info.tenant = detail.tenant.load_acquire();
  info.priority = uint32_t(kind);
  info.content_type = uint32_t(kind >> 56);
  info.stored_ms = detail.stored_ms.load_acquire();
  info.expires_ms = line.expires_ms.load_acquire();
  shm::KeyBytes key;  // read_key() fills as much as the key has
  const bool has_key = ret_key == nullptr || shm::read_key(region_, ref, &key);
  if (const int after = status(); after != 0) return after;
  if (!has_key || !metadata.fits) return -EBADMSG;
  *ret_info = info;
  if (ret_key != nullptr) {
    ret_key->size = key.size;
    ret_key->kind = key.kind;
    ret_key->tenant = key.tenant;
    std::memcpy(ret_key->data, key.data, key.size);
  }
  return 0;
}

}  // namespace maru::client
