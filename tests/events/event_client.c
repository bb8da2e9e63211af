/* A client for the tests of events: attaches to the marud of $MARU_SOCKET, then does one thing for each line of its input and
 * answers with one line, the result. Keys are digests of 32 bytes; all bytes are in hexadecimal digits.
 *   store KEY BYTES PARENT METADATA [TENANT]   "-" is no parent, and no metadata
 *   ttl MS   of all stores from now on; 0 is for ever
 *   delete KEY [TENANT], exists KEY [TENANT]
 *   which KEY...   how many leading keys are there, match KEY... likewise, by maru_match_prefix
 *   batch KEY..., rows KEY...   how many of them are there, by maru_exists_batch and maru_exists_rows
 *   retrieve KEY   and releases it
 *   traceparent TEXT   what this thread works for from now on; "-" is nothing
 *   request TEXT, end RESULT   a request's span, which the calls between the two are part of
 */
#include <maru/follow.h>
#include <maru/maru.h>
#include <maru/tracing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 64
#define LINE_MAX_BYTES (4 * MARU_METADATA_BYTES_MAX)

static char line[LINE_MAX_BYTES];
static char payload[1 << 20];
static unsigned char metadata[MARU_METADATA_BYTES_MAX];
static uint64_t ttl_ms;

static unsigned half_of(char digit) { return digit <= '9' ? (unsigned)(digit - '0') : (unsigned)(digit - 'a' + 10); }

/* As many bytes as the text has whole pairs of digits, 0 to 9 and a to f. */
static uint32_t bytes_of(const char *hex, unsigned char *ret, size_t most) {
  uint32_t n = 0;
  for (; n < most && hex[0] && hex[1]; hex += 2) ret[n++] = (unsigned char)(half_of(hex[0]) << 4 | half_of(hex[1]));
  return n;
}

static maru_key key_of(maru_client *client, const char *hex, unsigned char *digest, const char *tenant) {
  maru_key key;
  memset(&key, 0, sizeof key);
  key.data = digest;
  key.size = bytes_of(hex, digest, 32);
  key.kind = MARU_KEY_DIGEST256;
  if (tenant) maru_tenant(client, tenant, strlen(tenant), &key.tenant);
  return key;
}

static int store(maru_client *client, char **words, const char *tenant) {
  unsigned char digest[32], parent_digest[32];
  const maru_key key = key_of(client, words[1], digest, tenant);
  const maru_key parent = key_of(client, words[3], parent_digest, tenant);
  const uint64_t bytes = strtoull(words[2], NULL, 10);
  maru_metadata about;
  maru_store_options options;
  memset(&options, 0, sizeof options);
  memset(&about, 0, sizeof about);
  options.size = sizeof options;
  options.ttl_ms = ttl_ms;
  if (strcmp(words[3], "-") != 0) options.parent_key = &parent;
  if (strcmp(words[4], "-") != 0) {
    about.data = metadata;
    about.bytes = bytes_of(words[4], metadata, sizeof metadata);
    options.metadata = &about;
  }
  if (bytes > sizeof payload) return -1;
  return maru_store_copy(client, &key, payload, bytes, &options, NULL);
}

static int which(maru_client *client, char **words, size_t n) {
  unsigned char digests[WORDS_MAX][32];
  maru_key keys[WORDS_MAX];
  maru_range first;
  size_t i;
  int ranges;
  for (i = 0; i < n; ++i) keys[i] = key_of(client, words[i], digests[i], NULL);
  ranges = maru_which(client, keys, n, &first, 1, NULL);
  if (ranges < 0) return ranges;
  return ranges > 0 && first.start == 0 ? (int)first.end : 0;
}

static int count(maru_client *client, char **words, size_t n, int in_rows) {
  unsigned char digests[WORDS_MAX][32];
  maru_key keys[WORDS_MAX];
  maru_key_rows rows;
  uint8_t present[WORDS_MAX];
  size_t i;
  for (i = 0; i < n; ++i) keys[i] = key_of(client, words[i], digests[i], NULL);
  if (!in_rows) return maru_exists_batch(client, keys, n, present);
  memset(&rows, 0, sizeof rows);
  rows.data = digests;
  rows.stride = sizeof digests[0];
  rows.size = sizeof digests[0];
  rows.kind = MARU_KEY_DIGEST256;
  return maru_exists_rows(client, &rows, n, present);
}

static int match(maru_client *client, char **words, size_t n) {
  unsigned char digests[WORDS_MAX][32];
  maru_key keys[WORDS_MAX];
  maru_match found;
  size_t i;
  int result, blocks;
  for (i = 0; i < n; ++i) keys[i] = key_of(client, words[i], digests[i], NULL);
  result = maru_match_prefix(client, keys, n, &found);
  if (result != 0) return result;
  blocks = (int)found.blocks;
  maru_release_match(client, &found);
  return blocks;
}

static int retrieve(maru_client *client, const char *hex) {
  unsigned char digest[32];
  const maru_key key = key_of(client, hex, digest, NULL);
  maru_view view;
  const int result = maru_retrieve(client, &key, &view);
  if (result == 0) maru_release(client, &view);
  return result;
}

static int trace(maru_client *client, char **words) {
  static maru_request_span request;
  const char *text = strcmp(words[1], "-") == 0 ? NULL : words[1];
  int result;
  if (strcmp(words[0], "traceparent") == 0) return maru_set_traceparent(text);
  if (strcmp(words[0], "end") == 0) {
    maru_set_traceparent(NULL);
    return maru_end_request(client, &request, atoi(words[1]));
  }
  result = maru_begin_request(client, text, &request);
  return result != 0 ? result : maru_set_traceparent(request.traceparent);
}

int main(void) {
  maru_client *client;
  const int attached = maru_attach(NULL, &client);
  if (attached != 0) {
    fprintf(stderr, "attach: %d\n", attached);
    return 1;
  }
  while (fgets(line, sizeof line, stdin)) {
    char *words[WORDS_MAX] = {0};
    unsigned char digest[32];
    int n = 0, result = -1;
    char *word;
    for (word = strtok(line, " \n"); word && n < WORDS_MAX; word = strtok(NULL, " \n")) words[n++] = word;
    if (n >= 5 && strcmp(words[0], "store") == 0) result = store(client, words, words[5]);
    if (n >= 2 && strcmp(words[0], "ttl") == 0) {
      ttl_ms = strtoull(words[1], NULL, 10);
      result = 0;
    }
    if (n >= 2 && strcmp(words[0], "delete") == 0) {
      const maru_key key = key_of(client, words[1], digest, words[2]);
      result = maru_delete(client, &key);
    }
    if (n >= 2 && strcmp(words[0], "exists") == 0) {
      const maru_key key = key_of(client, words[1], digest, words[2]);
      result = maru_exists(client, &key);
    }
    if (n >= 2 && strcmp(words[0], "which") == 0) result = which(client, words + 1, (size_t)n - 1);
    if (n >= 2 && (strcmp(words[0], "batch") == 0 || strcmp(words[0], "rows") == 0))
      result = count(client, words + 1, (size_t)n - 1, strcmp(words[0], "rows") == 0);
    if (n >= 2 && strcmp(words[0], "match") == 0) result = match(client, words + 1, (size_t)n - 1);
    if (n >= 2 && strcmp(words[0], "retrieve") == 0) result = retrieve(client, words[1]);
    if (n >= 2 &&
        (strcmp(words[0], "traceparent") == 0 || strcmp(words[0], "request") == 0 || strcmp(words[0], "end") == 0))
      result = trace(client, words);
    printf("%d\n", result);
    fflush(stdout);
  }
  maru_detach(client);
  return 0;
}
