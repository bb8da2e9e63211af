// What maru.hpp promises: owners give back what they hold, moves hand it on, and an error leaves it where it was. Exit
// status 0 when all of it held.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <maru/maru.hpp>
#include <sys/syscall.h>
#include <type_traits>
#include <unistd.h>

namespace {

int failures = 0;

#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                                    \
    }                                                                                \
  } while (0)

constexpr size_t kBlockBytes = 4096;

template <typename T>
constexpr bool kMovesOnly = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
                            !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
// Nobody takes "could be asked" for "is there".
static_assert(!std::is_constructible_v<bool, maru::Outcome<bool>> && std::is_constructible_v<bool, maru::Outcome<int>>);
static_assert(kMovesOnly<maru::Client> && kMovesOnly<maru::Buffer> && kMovesOnly<maru::Buffers> &&
              kMovesOnly<maru::View> && kMovesOnly<maru::Match>);

uint64_t pins_of(const maru::Client& client) {
  const maru::Outcome<maru_statistics> statistics = client.statistics();
  return statistics ? statistics->pins : ~0ull;
}

void views_release_what_they_pin(maru::Client& client) {
  const maru::Key key(std::string_view("view"));
  const char text[] = "payload";
  const auto stored = client.store_copy(key, std::as_bytes(std::span(text)));
  EXPECT(stored && stored->is_new);
  EXPECT(pins_of(client) == 0);
  {
    maru::Outcome<maru::View> view = client.retrieve(key);
    EXPECT(view && view->bytes().size() == sizeof(text));
    if (!view) return;
    EXPECT(std::memcmp(view->bytes().data(), text, sizeof(text)) == 0);
    maru::View moved = std::move(*view);
    EXPECT(moved.is_held() && !view->is_held());
    EXPECT(moved.bytes().size() == sizeof(text) && view->bytes().empty());
    EXPECT(pins_of(client) == 1);
  }
  EXPECT(pins_of(client) == 0);
  std::array<uint8_t, 2> present{7, 7};
  const maru_key_rows rows = {"viewnone", 4, nullptr, 4, MARU_KEY_BYTES, 0};
  const maru::Outcome<size_t> found = client.exists_rows(rows, present);
  EXPECT(found && *found == 1 && present[0] == 1 && present[1] == 0);
  EXPECT(client.remove(key).ok());
  EXPECT(client.retrieve(key).error() == ENOENT);
  // Not the key of four bytes that is left when the size is cut off.
  const maru::Key too_large(std::string_view("view", (size_t(1) << 32) + 4));
  EXPECT(client.exists(too_large).error() == EINVAL);
}

void buffers_are_aborted_or_stored(maru::Client& client) {
  const maru::Key key(std::string_view("buffer"));
  {
    maru::Outcome<maru::Buffer> dropped = client.alloc(kBlockBytes);
    EXPECT(dropped && dropped->bytes().size() == kBlockBytes);
  }
  maru::Outcome<maru::Buffer> buffer = client.alloc(kBlockBytes);
  EXPECT(buffer.ok());
  if (!buffer) return;
  std::memset(buffer->bytes().data(), 7, kBlockBytes);
  // A parent that cannot be there: the buffer stays ours.
  const maru::Outcome<maru::Stored> orphan = client.store(key, *buffer, maru::store_under(~0ull >> 1));
  EXPECT(!orphan && buffer->is_held());
  const maru::Outcome<maru::Stored> root = client.store(key, *buffer);
  EXPECT(root && root->is_new && !buffer->is_held());
  const maru::Outcome<bool> exists = client.exists(key);
  EXPECT(exists.ok() && *exists);
  EXPECT(buffer->bytes().empty());  // it is stored, and not to be written any more
  EXPECT(client.remove(key).ok());

  // Its memory is used further: the view holds what was stored; nothing when another block was there.
  maru::Outcome<maru::Buffer> first = client.alloc(kBlockBytes), second = client.alloc(kBlockBytes);
  if (!first || !second) return;
  const maru::Outcome<maru::View> held = client.store_pinned(key, *first);
  EXPECT(held && held->is_held() && !first->is_held() && held->bytes().size() == kBlockBytes);
  const maru::Outcome<maru::View> none = client.store_pinned(key, *second);
  EXPECT(none && !none->is_held() && second->is_held());
  EXPECT(client.remove(key).ok());
}

void views_give_metadata(maru::Client& client) {
  const maru::Key key(std::string_view("described"));
  const std::string_view text = "layers 0 to 3";
  const maru_metadata metadata = maru::metadata_from(text);
  maru_store_options options = maru::store_options();
  options.metadata = &metadata;
  options.priority = 5;
  maru::Outcome<maru::Buffer> buffer = client.alloc_with_metadata(kBlockBytes, uint32_t(text.size()));
  EXPECT(buffer && buffer->bytes().size() == kBlockBytes);
  if (!buffer) return;
  EXPECT(client.store(key, *buffer, options).ok());
  maru::Outcome<maru::View> view = client.retrieve(key);
  EXPECT(view.ok());
  if (!view) return;
  const maru::Outcome<std::span<const std::byte>> found = view->metadata();
  EXPECT(found && found->size() == text.size() && std::memcmp(found->data(), text.data(), text.size()) == 0);
  maru_key_copy copy;
  const maru::Outcome<maru_block_info> info = client.block_info(view->block(), &copy);
  EXPECT(info && info->bytes == kBlockBytes && info->metadata_bytes == text.size() && info->priority == 5);
  EXPECT(copy.size == 9 && std::memcmp(copy.data, "described", 9) == 0);
  view->release();
  EXPECT(view->metadata().error() == EINVAL);
  EXPECT(client.block_info(0).error() == EINVAL);
  const std::array<std::byte, 1> byte{};
  const maru_metadata too_long = maru::metadata_from(std::span<const std::byte>(byte.data(), size_t(1) << 32));
  options.metadata = &too_long;
  EXPECT(client.store_copy(key, std::as_bytes(std::span(text)), options).error() == E2BIG);
  EXPECT(client.remove(key).ok());
}

void many_at_once(maru::Client& client) {
  constexpr std::array<std::string_view, 4> names = {"m0", "m1", "m2", "m3"};
  std::array<maru::Key, 4> keys;
  std::array<const void*, 4> data;
  std::array<uint64_t, 4> bytes;
  std::array<int32_t, 4> results;
  std::array<maru_block, 4> blocks;
  std::array<maru::View, 4> views;
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = maru::Key(names[i]);
    data[i] = names[i].data();
    bytes[i] = names[i].size();
  }
  maru::Outcome<maru::Buffers> buffers = client.alloc_batch(kBlockBytes, 3);
  EXPECT(buffers.ok());
  if (!buffers) return;
  EXPECT(client.store_batch(keys, *buffers, results).error() == EINVAL);  // four keys for three buffers
  const std::span<const maru::Key> first(keys.data(), 3);
  const maru::Outcome<size_t> stored = client.store_batch(first, *buffers, std::span(results).first(3),
                                                          maru::store_options(), std::span(blocks).first(3));
  EXPECT(stored && *stored == 3 && results[2] == 0 && blocks[2] != 0 && buffers->done() == 3);
  const maru::Outcome<size_t> copied = client.store_copy_batch(keys, data, bytes, results);
  EXPECT(copied && *copied == 1 && results[0] == 1 && results[3] == 0);
  const maru::Outcome<size_t> pinned = client.pin_batch(keys, views);
  EXPECT(pinned && *pinned == 4 && views[2].block() == blocks[2] && views[2].bytes().empty() && views[3].size() == 2);
  for (maru::View& view : views) view.release();
  EXPECT(pins_of(client) == 0);
  EXPECT(client.remove_batch(keys).ok());
}

void a_match_holds_its_chain(maru::Client& client) {
  std::array<uint64_t[2], 16> digests;
  std::array<maru::Key, 16> keys;
  for (size_t i = 0; i < keys.size(); ++i) {
    digests[i][0] = 1000 + i;
    digests[i][1] = 77;
    keys[i] = maru::Key::digest128(digests[i]);
  }
  maru::Outcome<maru::Buffers> buffers = client.alloc_batch(kBlockBytes, 10);
  EXPECT(buffers.ok());
  if (!buffers) return;
  for (size_t i = 0; i < buffers->size(); ++i) std::memset(buffers->bytes(i).data(), int(i), kBlockBytes);
  EXPECT(client.store_chain(keys, *buffers).error == EINVAL);  // sixteen keys for ten buffers
  const maru::ChainStored chain = client.store_chain(std::span(keys).first(10), *buffers);
  EXPECT(chain.error == 0 && chain.stored == 10 && buffers->done() == 10);
  EXPECT(buffers->bytes(0).empty() && buffers->bytes(9).empty());  // they are blocks now

  maru::Outcome<maru::Match> match = client.match_prefix(keys);
  EXPECT(match && match->blocks() == 10);
  if (!match) return;
  std::array<maru_view, 10> views;
  EXPECT(match->resolve(keys, views).ok());
  for (size_t i = 0; i < views.size(); ++i)
    EXPECT(views[i].data && static_cast<const unsigned char*>(views[i].data)[99] == i);
  EXPECT(client.remove(keys[9]).ok());  // the deepest goes, for all but the match
  EXPECT(client.remove(keys[8]).error() == ENOTEMPTY);
  EXPECT(static_cast<const unsigned char*>(views[9].data)[5] == 9);
  match->release();
  EXPECT(match->blocks() == 0);
  EXPECT(pins_of(client) == 0);
  // The pages of the one removed before may still be on their way back, and hold their parent until they are.
  const maru::Outcome<uint64_t> removed = client.remove_tree(keys[0]);
  EXPECT(removed.ok() || removed.error() == EBUSY);
}

// The signal that the kernel sends when an access meets bad memory; the memory stays as it is.
void pretend_memory_error(const void* address) {
  siginfo_t info;
  std::memset(&info, 0, sizeof(info));
  info.si_signo = SIGBUS;
  info.si_code = BUS_MCEERR_AR;
  info.si_addr = const_cast<void*>(address);
  info.si_addr_lsb = 12;
  EXPECT(::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), SIGBUS, &info) == 0);
}

void a_view_of_bad_memory_says_so(maru::Client& client) {
  EXPECT(maru::handle_memory_errors().ok());
  EXPECT(maru::handle_memory_errors(true).ok());
  const maru::Key key(std::string_view("bad"));
  const char text[] = "payload";
  EXPECT(client.store_copy(key, std::as_bytes(std::span(text))).ok());
  const maru::Outcome<maru::View> view = client.retrieve(key);
  EXPECT(view && view->error() == 0);
  if (!view) return;
  pretend_memory_error(view->bytes().data());
  EXPECT(view->error() == EHWPOISON);
  EXPECT(*reinterpret_cast<const volatile char*>(view->bytes().data()) == 0);
}

}  // namespace

int main() {
  maru::Outcome<maru::Client> attached = maru::Client::attach();
  if (!attached) {
    std::fprintf(stderr, "attach: %s\n", std::strerror(attached.error()));
    return 1;
  }
  maru::Client client = std::move(*attached);
  EXPECT(client.is_attached() && !attached->is_attached());
  const maru::Outcome<maru_geometry> geometry = client.geometry();
  EXPECT(geometry && geometry->pages > 0);
  views_release_what_they_pin(client);
  views_give_metadata(client);
  buffers_are_aborted_or_stored(client);
  many_at_once(client);
  a_match_holds_its_chain(client);
  a_view_of_bad_memory_says_so(client);
  client.detach();
  EXPECT(!client.is_attached());
  if (failures == 0) std::printf("used libmaru %s from C++\n", maru_version());
  return failures != 0;
}
