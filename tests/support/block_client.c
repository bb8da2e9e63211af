/* A client for tests in other languages: attaches to the marud of $MARU_SOCKET, then does one thing for each line of its input
 * and answers with one line, the result.
 *   store KEY BYTES [TENANT [PARENT [TTL_MS]]]   "-" is no tenant, and no parent
 *   pile128 HEX BYTES                    stores under the 16 bytes of a digest, and keeps it pinned until unpile
 *   fill PREFIX COUNT BYTES [TENANT]     stores PREFIX0, PREFIX1, ...; answers how many were
 *   retrieve KEY                         and lets go again
 *   hold KEY [TENANT], drop              keeps one block pinned, and lets go of it
 *   pile PREFIX COUNT, unpile            keeps PREFIX0, PREFIX1, ... pinned until one is refused; answers how many; lets go
 *   hammer PREFIX COUNT MS               retrieves them and lets go, over and over, for so long; answers how often it had one
 *   take BYTES                           takes memory to fill, and keeps it unfinished
 *   exists KEY, delete KEY
 *   match KEY KEY...                     answers how many leading ones there are
 * With $BLOCK_CLIENT_POOL it attaches to that pool. With $BLOCK_CLIENT_USER it is that user's process, of the group of the same
 * number and no other.
 */
#define _DEFAULT_SOURCE
#include <grp.h>
#include <maru/maru.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORDS_MAX 64
#define PILE_MAX 4096

static char block[1 << 20];
static maru_view held;
static int is_holding;
static maru_buffer unfinished;
static maru_view pile[PILE_MAX];
static int piled;

static maru_key key_of(maru_client *client, const char *text, const char *tenant) {
  maru_key key;
  memset(&key, 0, sizeof key);
  key.data = text;
  key.size = (uint32_t)strlen(text);
  key.kind = MARU_KEY_BYTES;
  if (tenant && strcmp(tenant, "-") != 0) maru_tenant(client, tenant, strlen(tenant), &key.tenant);
  return key;
}

static int store(maru_client *client, const char *name, uint64_t bytes, const char *tenant, const char *parent,
                 uint64_t ttl_ms) {
  const maru_key key = key_of(client, name, tenant);
  maru_key parent_key;
  maru_store_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.ttl_ms = ttl_ms;
  if (parent && strcmp(parent, "-") != 0) {
    parent_key = key_of(client, parent, tenant);
    options.parent_key = &parent_key;
  }
  if (bytes > sizeof block) return -1;
  return maru_store_copy(client, &key, block, bytes, &options, NULL);
}

static int pile128(maru_client *client, const char *hex, uint64_t bytes) {
  unsigned char digest[16];
  maru_key key;
  maru_buffer buffer;
  int result;
  size_t i;
  memset(&key, 0, sizeof key);
  for (i = 0; i < sizeof digest; ++i) {
    unsigned byte;
    if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return -1;
    digest[i] = (unsigned char)byte;
  }
  key.data = digest;
  key.size = sizeof digest;
  key.kind = MARU_KEY_DIGEST128;
  if (piled == PILE_MAX) return -1;
  result = maru_alloc(client, bytes, &buffer);
  if (result != 0) return result;
  result = maru_store_pinned(client, &key, &buffer, NULL, &pile[piled]);
  if (result != 0)
    maru_abort(client, &buffer);
  else
    ++piled;
  return result;
}

static int fill(maru_client *client, const char *prefix, int count, uint64_t bytes, const char *tenant) {
  char name[128];
  int i, stored = 0;
  for (i = 0; i < count; ++i) {
    snprintf(name, sizeof name, "%s%d", prefix, i);
    stored += store(client, name, bytes, tenant, NULL, 0) == 0;
  }
  return stored;
}

static int keep(maru_client *client, const char *prefix, int count) {
  char name[128];
  int i;
  for (i = 0; i < count && piled < PILE_MAX; ++i) {
    maru_key key;
    snprintf(name, sizeof name, "%s%d", prefix, i);
    key = key_of(client, name, NULL);
    if (maru_retrieve(client, &key, &pile[piled]) != 0) break;
    ++piled;
  }
  return piled;
}

static int let_go(maru_client *client) {
  const int result = piled > 0 ? maru_release_batch(client, pile, (size_t)piled) : 0;
  piled = 0;
  return result;
}

static long long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int hammer(maru_client *client, const char *prefix, int count, long long ms) {
  const long long until = now_ms() + ms;
  char name[128];
  int i, found = 0;
  while (now_ms() < until)
    for (i = 0; i < count; ++i) {
      maru_key key;
      maru_view view;
      snprintf(name, sizeof name, "%s%d", prefix, i);
      key = key_of(client, name, NULL);
      if (maru_retrieve(client, &key, &view) != 0) continue;
      maru_release(client, &view);
      ++found;
    }
  return found;
}

static int match(maru_client *client, char **words, int count) {
  maru_key keys[WORDS_MAX];
  maru_match found;
  int i, result;
  for (i = 0; i < count; ++i) keys[i] = key_of(client, words[i], NULL);
  memset(&found, 0, sizeof found);
  result = maru_match_prefix(client, keys, (size_t)count, &found);
  if (result < 0) return result;
  result = (int)found.blocks;
  maru_release_match(client, &found);
  return result;
}

static int act(maru_client *client, char **words, int count) {
  const char *what = words[0];
  maru_key key;
  maru_view view;
  int result;
  if (strcmp(what, "store") == 0 && count >= 3)
    return store(client, words[1], strtoull(words[2], NULL, 10), count > 3 ? words[3] : NULL,
                 count > 4 ? words[4] : NULL, count > 5 ? strtoull(words[5], NULL, 10) : 0);
  if (strcmp(what, "pile128") == 0 && count >= 3) return pile128(client, words[1], strtoull(words[2], NULL, 10));
  if (strcmp(what, "fill") == 0 && count >= 4)
    return fill(client, words[1], atoi(words[2]), strtoull(words[3], NULL, 10), count > 4 ? words[4] : NULL);
  if (strcmp(what, "pile") == 0 && count >= 3) return keep(client, words[1], atoi(words[2]));
  if (strcmp(what, "unpile") == 0) return let_go(client);
  if (strcmp(what, "hammer") == 0 && count >= 4)
    return hammer(client, words[1], atoi(words[2]), strtoll(words[3], NULL, 10));
  if (strcmp(what, "match") == 0) return match(client, words + 1, count - 1);
  if (strcmp(what, "drop") == 0 && is_holding) {
    is_holding = 0;
    return maru_release(client, &held);
  }
  if (count < 2) return -1;
  key = key_of(client, words[1], count > 2 ? words[2] : NULL);
  if (strcmp(what, "take") == 0) return maru_alloc(client, strtoull(words[1], NULL, 10), &unfinished);
  if (strcmp(what, "exists") == 0) return maru_exists(client, &key);
  if (strcmp(what, "delete") == 0) return maru_delete(client, &key);
  if (strcmp(what, "hold") == 0) {
    result = maru_retrieve(client, &key, &held);
    is_holding = result == 0;
    return result;
  }
  if (strcmp(what, "retrieve") == 0) {
    result = maru_retrieve(client, &key, &view);
    if (result == 0) maru_release(client, &view);
    return result;
  }
  return -1;
}

static int become(const char *user) {
  const unsigned number = (unsigned)strtoul(user, NULL, 10);
  return setgroups(0, NULL) == 0 && setgid(number) == 0 && setuid(number) == 0 ? 0 : -1;
}

int main(void) {
  maru_client *client = NULL;
  const char *user = getenv("BLOCK_CLIENT_USER");
  maru_attach_options options;
  char line[4096];
  char *words[WORDS_MAX];
  int attached;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.pool = getenv("BLOCK_CLIENT_POOL");
  options.timeout_ms = 120000; /* the machine may be slow */
  if (user && become(user) != 0) {
    perror("become another user");
    return 2;
  }
  attached = maru_attach(&options, &client);
  if (attached != 0) {
    fprintf(stderr, "cannot attach: %d\n", attached);
    return 1;
  }
  memset(block, 'x', sizeof block);
  while (fgets(line, sizeof line, stdin)) {
    int count = 0;
    char *word = strtok(line, " \n");
    while (word && count < WORDS_MAX) {
      words[count++] = word;
      word = strtok(NULL, " \n");
    }
    if (count == 0) continue;
    printf("%d\n", act(client, words, count));
    fflush(stdout);
  }
  maru_detach(client);
  return 0;
}
