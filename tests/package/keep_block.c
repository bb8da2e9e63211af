/* keep_block store | find | hold | fill
 * store and find: stores a block under one key and ends, or looks for it. hold: finds it, says "held", keeps it until its
 * standard input ends, whatever becomes of marud meanwhile, looks at it again, and stores another one. fill: finds it, and
 * stores 48 MiB. Exit status 0 when the block was there all the time. */
#include <errno.h>
#include <maru/maru.h>
#include <stdio.h>
#include <string.h>

static const char kept[] = "what was stored before marud ended";

static maru_key key_of(const char *text) {
  maru_key key;
  memset(&key, 0, sizeof key);
  key.data = text;
  key.size = (uint32_t)strlen(text);
  key.kind = MARU_KEY_BYTES;
  return key;
}

static int is_kept(const maru_view *view) {
  return view->bytes == sizeof kept && memcmp(view->data, kept, sizeof kept) == 0;
}

static int hold(maru_client *client, const maru_key *key, const maru_view *held) {
  const maru_key another = key_of("another");
  maru_view view;
  int result;
  puts("held");
  fflush(stdout);
  while (getchar() != EOF) continue;
  if (!is_kept(held)) return -EILSEQ;
  result = maru_reattach(client);
  if (result == 0) result = maru_release(client, held);
  if (result == 0) result = maru_store_copy(client, &another, kept, sizeof kept, NULL, NULL);
  if (result == 0) result = maru_retrieve(client, &another, &view);
  if (result == 0 && !is_kept(&view)) result = -EILSEQ;
  if (result == 0) result = maru_retrieve(client, key, &view);
  if (result == 0 && !is_kept(&view)) result = -EILSEQ;
  return result;
}

static int fill(maru_client *client) {
  static char bytes[64 << 10];
  char name[32];
  int i, result = 0;
  memset(bytes, 1, sizeof bytes);
  for (i = 0; i < 768 && result == 0; ++i) {
    maru_key key;
    snprintf(name, sizeof name, "fill %d", i);
    key = key_of(name);
    result = maru_store_copy(client, &key, bytes, sizeof bytes, NULL, NULL);
  }
  return result;
}

int main(int count, char **arguments) {
  maru_attach_options options;
  maru_client *client = NULL;
  maru_view view;
  const maru_key key = key_of("kept");
  int result;
  if (count != 2) return 2;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.timeout_ms = 60000; /* a pool that begins anew takes a busy machine longer than the library waits by itself */
  result = maru_attach(&options, &client);
  if (result == 0 && strcmp(arguments[1], "store") == 0)
    result = maru_store_copy(client, &key, kept, sizeof kept, NULL, NULL);
  if (result == 0) result = maru_retrieve(client, &key, &view);
  if (result == 0 && !is_kept(&view)) result = -EILSEQ;
  if (result == 0 && strcmp(arguments[1], "hold") == 0) result = hold(client, &key, &view);
  if (result == 0 && strcmp(arguments[1], "fill") == 0) result = fill(client);
  if (result != 0)
    fprintf(stderr, "keep_block %s: %s\n", arguments[1], result < 0 ? strerror(-result) : "another was first");
  if (client) maru_detach(client);
  return result != 0;
}
