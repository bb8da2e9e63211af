/* What maru.h promises, used from C: a chain is stored, matched, read and deleted. Exit status 0 when all of it held. */
#include <errno.h>
#include <maru/maru.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 8
#define BLOCK_BYTES 4096
#define MANY 3000 /* blocks of a report, which takes several messages */

static int failures;

#define EXPECT(condition)                                                                           \
  do {                                                                                              \
    if (!(condition)) {                                                                             \
      fprintf(stderr, "%s:%d: not true: %s (result %d)\n", __FILE__, __LINE__, #condition, result); \
      ++failures;                                                                                   \
    }                                                                                               \
  } while (0)

static maru_key key_of(const char *text) {
  maru_key key;
  memset(&key, 0, sizeof key);
  key.data = text;
  key.size = (uint32_t)strlen(text);
  key.kind = MARU_KEY_BYTES;
  return key;
}

static void use_one_block(maru_client *client) {
  const maru_key key = key_of("one block");
  maru_buffer buffer;
  maru_view view;
  maru_block block = 0;
  int result = maru_exists(client, &key);
  EXPECT(result == 0);
  result = maru_retrieve(client, &key, &view);
  EXPECT(result == -ENOENT);

  result = maru_alloc(client, BLOCK_BYTES, &buffer);
  EXPECT(result == 0);
  if (result != 0) return;
  EXPECT(buffer.bytes == BLOCK_BYTES);
  memset(buffer.data, 'x', BLOCK_BYTES);
  result = maru_store(client, &key, &buffer, NULL, &block);
  EXPECT(result == 0 && block != 0);
  result = maru_store_copy(client, &key, "another", 7, NULL, NULL);
  EXPECT(result == 1); /* the first writer wins */

  result = maru_retrieve(client, &key, &view);
  EXPECT(result == 0);
  if (result != 0) return;
  EXPECT(view.bytes == BLOCK_BYTES && view.block == block);
  EXPECT(((const char *)view.data)[BLOCK_BYTES - 1] == 'x');
  result = maru_delete(client, &key); /* gone at once, for all but who holds it */
  EXPECT(result == 0);
  EXPECT(maru_exists(client, &key) == 0);
  EXPECT(((const char *)view.data)[0] == 'x');
  result = maru_release(client, &view);
  EXPECT(result == 0);
  result = maru_release(client, &view);
  EXPECT(result == -EINVAL);
}

/* Its memory is used further: pinned when it was stored, still the caller's when another block was there. */
static void go_on_using_a_buffer(maru_client *client) {
  const maru_key key = key_of("shared buffer");
  maru_statistics now;
  maru_buffer buffer, late;
  maru_view stored, view;
  int result = maru_alloc(client, BLOCK_BYTES, &buffer);
  memset(&now, 0, sizeof now);
  now.size = sizeof now;
  EXPECT(result == 0);
  result = maru_alloc(client, BLOCK_BYTES, &late);
  EXPECT(result == 0);
  if (result != 0) return;
  memset(buffer.data, 'y', BLOCK_BYTES);
  memset(late.data, 'z', BLOCK_BYTES);
  result = maru_store_pinned(client, &key, &buffer, NULL, &stored);
  EXPECT(result == 0 && stored.block == buffer.block && stored.data == buffer.data && stored.bytes == BLOCK_BYTES);
  result = maru_get_statistics(client, &now);
  EXPECT(result == 0 && now.pins == 1);
  result = maru_store_pinned(client, &key, &buffer, NULL, &view);
  EXPECT(result == -EINVAL); /* used up */
  result = maru_store_pinned(client, &key, &late, NULL, &view);
  EXPECT(result == 1 && view.block == 0 && view.data == NULL);
  EXPECT(((const char *)late.data)[BLOCK_BYTES - 1] == 'z');
  result = maru_abort(client, &late);
  EXPECT(result == 0);
  EXPECT(maru_store_pinned(client, &key, &late, NULL, NULL) == -EINVAL);
  result = maru_retrieve(client, &key, &view);
  EXPECT(result == 0 && ((const char *)view.data)[0] == 'y');
  result = maru_release(client, &view);
  EXPECT(result == 0);
  result = maru_release(client, &stored);
  EXPECT(result == 0);
  result = maru_release(client, &stored);
  EXPECT(result == -EINVAL);
  result = maru_delete(client, &key);
  EXPECT(result == 0);
}

static void use_many_at_once(maru_client *client) {
  static const char *const names[BLOCKS] = {"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"};
  maru_key keys[BLOCKS];
  maru_buffer buffers[BLOCKS];
  maru_view views[BLOCKS];
  maru_block blocks[BLOCKS];
  const void *data[BLOCKS];
  uint64_t bytes[BLOCKS];
  int32_t results[BLOCKS];
  size_t i;
  int result;
  for (i = 0; i < BLOCKS; ++i) {
    keys[i] = key_of(names[i]);
    data[i] = names[i];
    bytes[i] = 2;
  }
  result = maru_alloc_batch(client, BLOCK_BYTES, BLOCKS, buffers);
  EXPECT(result == 0);
  if (result != 0) return;
  result = maru_store_batch(client, keys, buffers, BLOCKS / 2, NULL, blocks, results);
  EXPECT(result == BLOCKS / 2 && results[0] == 0 && blocks[0] == buffers[0].block);
  result = maru_abort_batch(client, buffers + BLOCKS / 2, BLOCKS - BLOCKS / 2);
  EXPECT(result == 0);
  result = maru_store_copy_batch(client, keys, data, bytes, BLOCKS, NULL, NULL, results);
  EXPECT(result == BLOCKS - BLOCKS / 2 && results[0] == 1 && results[BLOCKS - 1] == 0);
  result = maru_pin_batch(client, keys, BLOCKS, views);
  EXPECT(result == BLOCKS && views[0].block == blocks[0] && views[0].data == NULL && views[BLOCKS - 1].bytes == 2);
  result = maru_release_batch(client, views, BLOCKS);
  EXPECT(result == 0);
  result = maru_delete_batch(client, keys, BLOCKS, NULL);
  EXPECT(result == BLOCKS);
}

static void use_a_chain(maru_client *client) {
  static const char *const names[BLOCKS] = {"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"};
  maru_key keys[BLOCKS];
  maru_buffer buffers[BLOCKS];
  maru_view views[BLOCKS];
  maru_match match;
  size_t stored = 0, done = 0, i;
  uint64_t deleted = 0;
  uint8_t present[BLOCKS];
  int result;
  for (i = 0; i < BLOCKS; ++i) keys[i] = key_of(names[i]);
  result = maru_alloc_batch(client, BLOCK_BYTES, BLOCKS, buffers);
  EXPECT(result == 0);
  if (result != 0) return;
  for (i = 0; i < BLOCKS; ++i) memset(buffers[i].data, (int)('a' + i), BLOCK_BYTES);
  result = maru_store_chain(client, keys, buffers, BLOCKS, NULL, NULL, &stored, &done);
  EXPECT(result >= 0 && stored == BLOCKS);

  result = maru_match_prefix(client, keys, BLOCKS, &match);
  EXPECT(result == 0);
  if (result != 0) return;
  EXPECT(match.blocks == BLOCKS && match.deepest != 0);
  result = maru_resolve(client, &match, keys, BLOCKS, views);
  EXPECT(result == 0);
  for (i = 0; i < BLOCKS && result == 0; ++i) EXPECT(((const char *)views[i].data)[17] == (char)('a' + i));
  result = maru_delete(client, &keys[0]);
  EXPECT(result == -ENOTEMPTY);
  result = maru_release_match(client, &match);
  EXPECT(result == 0);
  result = maru_delete_tree(client, &keys[0], &deleted);
  EXPECT(result == 0 && deleted == BLOCKS);
  result = maru_exists_batch(client, keys, BLOCKS, present);
  EXPECT(result == 0 && present[0] == 0 && present[BLOCKS - 1] == 0);
}

/* A reader gets the metadata with the block, and in one call all that the pool knows of it. */
static void describe_a_block(maru_client *client) {
  const maru_key key = key_of("described");
  const char text[] = "layers 0 to 3";
  maru_metadata metadata, found;
  maru_store_options options;
  maru_block_info info;
  maru_key_copy copy;
  maru_buffer buffer;
  maru_view view;
  int result;
  memset(&metadata, 0, sizeof metadata);
  memset(&options, 0, sizeof options);
  memset(&info, 0, sizeof info);
  metadata.data = text;
  metadata.bytes = sizeof text;
  options.size = sizeof options;
  options.metadata = &metadata;
  options.priority = 5;
  info.size = sizeof info;
  result = maru_alloc_with_metadata(client, BLOCK_BYTES, sizeof text, 1, &buffer);
  EXPECT(result == 0);
  if (result != 0) return;
  memset(buffer.data, 'd', BLOCK_BYTES);
  result = maru_store(client, &key, &buffer, &options, NULL);
  EXPECT(result == 0);
  result = maru_retrieve(client, &key, &view);
  EXPECT(result == 0);
  if (result != 0) return;
  result = maru_view_metadata(client, &view, &found);
  EXPECT(result == 0 && found.bytes == sizeof text && memcmp(found.data, text, sizeof text) == 0);
  result = maru_get_block_info(client, view.block, &info, &copy);
  EXPECT(result == 0 && info.bytes == BLOCK_BYTES && info.metadata_bytes == sizeof text && info.priority == 5);
  EXPECT(copy.size == key.size && memcmp(copy.data, key.data, key.size) == 0);
  result = maru_release(client, &view);
  EXPECT(result == 0);
  metadata.bytes = MARU_METADATA_BYTES_MAX + 1;
  result = maru_store_copy(client, &key, "x", 1, &options, NULL);
  EXPECT(result == -E2BIG);
  result = maru_delete(client, &key);
  EXPECT(result == 0);
}

static void copy_elsewhere(maru_client *client) {
  static maru_block many[MANY];
  const maru_key key = key_of("in a tier, too");
  maru_view view;
  int result = maru_store_copy(client, &key, "text", 4, NULL, &many[MANY - 1]);
  EXPECT(result == 0);
  result = maru_peek_block(client, many[MANY - 1], &view);
  EXPECT(result == 0 && view.bytes == 4 && memcmp(view.data, "text", 4) == 0);
  result = maru_release(client, &view);
  EXPECT(result == 0);
  result = maru_report_copies(client, many, MANY);
  EXPECT(result == 0 || result == 1); /* marud may not have met it; numbers of no block are left out */
  EXPECT(maru_exists(client, &key) == 1);
  result = maru_delete(client, &key);
  EXPECT(result == 0);
  result = maru_peek_block(client, many[MANY - 1], &view);
  EXPECT(result == -ENOENT);
  result = maru_peek_block(client, 0, &view);
  EXPECT(result == -EINVAL);
  result = maru_peek_block(client, many[MANY - 1], NULL);
  EXPECT(result == -EINVAL);
  result = maru_report_copies(client, &many[MANY - 1], 1);
  EXPECT(result == 0); /* it has gone */
  result = maru_report_copies(client, NULL, 0);
  EXPECT(result == 0);
  result = maru_report_copies(client, NULL, 1);
  EXPECT(result == -EINVAL);
  result = maru_report_copies(client, many, ((size_t)1 << 20) + 1);
  EXPECT(result == -EINVAL);
}

static void use_one_life(maru_client *client) {
  const maru_key key = key_of("one life");
  maru_block first = 0, second = 0;
  maru_block_counts before, counts;
  maru_view view;
  int result;
  memset(&before, 0, sizeof before);
  before.size = sizeof before;
  result = maru_count_blocks(client, &before);
  EXPECT(result == 0);
  result = maru_store_copy(client, &key, "text", 4, NULL, &first);
  EXPECT(result == 0);
  result = maru_pin(client, &key, &view);
  EXPECT(result == 0);
  counts = before;
  result = maru_count_blocks(client, &counts);
  EXPECT(result == 0 && counts.blocks == before.blocks + 1 && counts.held == before.held + 1);
  EXPECT(counts.used_pages == before.used_pages + 1);
  result = maru_delete_block(client, first, MARU_DELETE_UNPINNED);
  EXPECT(result == -EBUSY);
  result = maru_unpin(client, &view);
  EXPECT(result == 0);
  result = maru_delete_block(client, first, MARU_DELETE_UNPINNED);
  EXPECT(result == 0);
  result = maru_store_copy(client, &key, "later", 5, NULL, &second);
  EXPECT(result == 0 && second != first);
  result = maru_delete_block(client, first, 0);
  EXPECT(result == -ENOENT);
  EXPECT(maru_exists(client, &key) == 1); /* the later block stays */
  result = maru_delete_block(client, second, 2);
  EXPECT(result == -EINVAL);
  result = maru_delete_block(client, 0, 0);
  EXPECT(result == -EINVAL);
  result = maru_delete_block(client, second, 0);
  EXPECT(result == 0 && maru_exists(client, &key) == 0);
  counts.size = 1;
  result = maru_count_blocks(client, &counts);
  EXPECT(result == -EINVAL);
}

int main(void) {
  maru_attach_options options;
  maru_client *client = NULL;
  maru_geometry geometry;
  int result;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  result = maru_attach(&options, &client);
  EXPECT(result == 0);
  if (result != 0) return 1;
  memset(&geometry, 0, sizeof geometry);
  geometry.size = sizeof geometry;
  result = maru_get_geometry(client, &geometry);
  EXPECT(result == 0 && geometry.pages > 0 && geometry.checksums == 0);
  EXPECT(strcmp(maru_version(), "0.1.0") == 0);
  EXPECT(geometry.metadata_bytes_max == MARU_METADATA_BYTES_MAX);
  use_one_block(client);
  describe_a_block(client);
  go_on_using_a_buffer(client);
  use_many_at_once(client);
  use_a_chain(client);
  use_one_life(client);
  copy_elsewhere(client);
  maru_detach(client);
  if (failures == 0) printf("used libmaru %s from C\n", maru_version());
  return failures != 0;
}
