/* The C side of calls.py: nanoseconds per call of a loop over digests of 16 bytes, or -1 when a call did not find its block. */
#define _POSIX_C_SOURCE 200809L
#include <maru/maru.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static maru_key digest(const unsigned char *digests, size_t i) {
  maru_key key = {digests + 16 * i, 16, MARU_KEY_DIGEST128, 0};
  return key;
}

maru_client *floor_attach(const char *socket_path) {
  maru_attach_options options = {.size = sizeof(options), .socket_path = socket_path};
  maru_client *client = NULL;
  return maru_attach(&options, &client) == 0 ? client : NULL;
}

void floor_detach(maru_client *client) { maru_detach(client); }

double floor_exists(maru_client *client, const unsigned char *digests, int blocks, int calls) {
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) {
    const maru_key key = digest(digests, (size_t)(i % blocks));
    if (maru_exists(client, &key) != 1) return -1;
  }
  return (now_ns() - start) / calls;
}

double floor_retrieve(maru_client *client, const unsigned char *digests, int blocks, int calls) {
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) {
    const maru_key key = digest(digests, (size_t)(i % blocks));
    maru_view view;
    if (maru_retrieve(client, &key, &view) != 0) return -1;
    maru_release(client, &view);
  }
  return (now_ns() - start) / calls;
}

double floor_exists_batch(maru_client *client, const unsigned char *digests, int blocks, int batch, int calls) {
  maru_key *keys = malloc((size_t)blocks * sizeof(*keys));
  unsigned char *present = malloc((size_t)batch);
  for (int i = 0; i < blocks; ++i) keys[i] = digest(digests, (size_t)i);
  int found = batch;
  const double start = now_ns();
  for (int i = 0; i < calls && found == batch; ++i)
    found = maru_exists_batch(client, keys + (size_t)i * (size_t)batch % (size_t)blocks, (size_t)batch, present);
  const double ns = (now_ns() - start) / calls;
  free(keys);
  free(present);
  return found == batch ? ns : -1;
}
