/* The C side of calls.py: nanoseconds per call of a loop over keys, or -1 when a call did not find its block. */
#define _POSIX_C_SOURCE 200809L
#include <Python.h>
#include <maru/maru.h>
#include <stdlib.h>
#include <time.h>

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

maru_client *floor_attach(const char *socket_path) {
  maru_attach_options options = {.size = sizeof(options), .socket_path = socket_path};
  maru_client *client = NULL;
  return maru_attach(&options, &client) == 0 ? client : NULL;
}

void floor_detach(maru_client *client) { maru_detach(client); }

/* n keys of `size` bytes each, which stay the caller's. */
maru_key *floor_keys(const void *const *data, int n, unsigned size, unsigned kind) {
  maru_key *keys = malloc((size_t)n * sizeof(*keys));
  for (int i = 0; keys != NULL && i < n; ++i) keys[i] = (maru_key){data[i], size, kind, 0};
  return keys;
}

void floor_drop_keys(maru_key *keys) { free(keys); }

double floor_exists(maru_client *client, const maru_key *keys, int n, int calls) {
  const double start = now_ns();
  for (int i = 0; i < calls; ++i)
    if (maru_exists(client, &keys[i % n]) != 1) return -1;
  return (now_ns() - start) / calls;
}

double floor_retrieve(maru_client *client, const maru_key *keys, int n, int calls) {
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) {
    maru_view view;
    if (maru_retrieve(client, &keys[i % n], &view) != 0) return -1;
    maru_release(client, &view);
  }
  return (now_ns() - start) / calls;
}

/* n blocks of `bytes` bytes stored, and deleted again: in one call or in n, from buffers (`data` NULL) or by copying. */
double floor_store(maru_client *client, const maru_key *keys, int n, const void *const *data, const uint64_t *bytes,
                   int is_batch, int calls) {
  maru_buffer *buffers = malloc((size_t)n * sizeof(*buffers));
  int32_t *results = malloc((size_t)n * sizeof(*results));
  int failed = 0;
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) {
    if (data == NULL) failed |= maru_alloc_batch(client, *bytes, (size_t)n, buffers) != 0;
    if (is_batch && data == NULL)
      failed |= maru_store_batch(client, keys, buffers, (size_t)n, NULL, NULL, results) != n;
    else if (is_batch)
      failed |= maru_store_copy_batch(client, keys, data, bytes, (size_t)n, NULL, NULL, results) != n;
    else
      for (int k = 0; k < n; ++k)
        failed |= data == NULL ? maru_store(client, &keys[k], &buffers[k], NULL, NULL) != 0
                               : maru_store_copy(client, &keys[k], data[k], bytes[k], NULL, NULL) != 0;
    failed |= maru_delete_batch(client, keys, (size_t)n, NULL) != n;
  }
  const double ns = (now_ns() - start) / calls;
  free(results);
  free(buffers);
  return failed ? -1 : ns;
}

/* n blocks pinned and released, in one call or in n. */
double floor_pin(maru_client *client, const maru_key *keys, int n, int is_batch, int calls) {
  maru_view *views = malloc((size_t)n * sizeof(*views));
  int failed = 0;
  const double start = now_ns();
  for (int i = 0; i < calls; ++i) {
    if (is_batch)
      failed |= maru_pin_batch(client, keys, (size_t)n, views) != n;
    else
      for (int k = 0; k < n; ++k) failed |= maru_pin(client, &keys[k], &views[k]) != 0;
    maru_release_batch(client, views, (size_t)n);
  }
  const double ns = (now_ns() - start) / calls;
  free(views);
  return failed ? -1 : ns;
}

double floor_exists_batch(maru_client *client, const maru_key *keys, int n, int batch, int calls) {
  unsigned char *present = malloc((size_t)batch);
  int found = batch;
  const double start = now_ns();
  for (int i = 0; i < calls && found == batch; ++i)
    found = maru_exists_batch(client, keys + (size_t)i * (size_t)batch % (size_t)n, (size_t)batch, present);
  const double ns = (now_ns() - start) / calls;
  free(present);
  return found == batch ? ns : -1;
}

/* What a batch of texts takes beside libmaru, whoever asks from Python: where each of them has its bytes, and how many, is
 * noted in a key, the GIL is given up once and had back, and a list of as many True is made and dropped. True's references are
 * counted once for a list, as the package does; dropping the list counts each. */
double floor_texts(PyObject *batches, int calls) {
  maru_key *keys = malloc(PyList_GET_SIZE(PyList_GET_ITEM(batches, 0)) * sizeof(*keys));
  int failed = keys == NULL;
  const double start = now_ns();
  for (int i = 0; i < calls && !failed; ++i) {
    PyObject *const texts = PyList_GET_ITEM(batches, i % PyList_GET_SIZE(batches));
    const Py_ssize_t n = PyList_GET_SIZE(texts);
    for (Py_ssize_t k = 0; k < n; ++k) {
      const PyASCIIObject *const text = (PyASCIIObject *)PyList_GET_ITEM(texts, k);
      failed |= Py_TYPE(text) != &PyUnicode_Type || !(text->state.compact & text->state.ascii);
      keys[k] = (maru_key){text + 1, (uint32_t)text->length, MARU_KEY_BYTES, 0};
    }
    PyEval_RestoreThread(PyEval_SaveThread());
    PyObject *const answer = PyList_New(n);
    if (answer == NULL) break;
    for (Py_ssize_t k = 0; k < n; ++k) PyList_SET_ITEM(answer, k, Py_True);
    Py_SET_REFCNT(Py_True, Py_REFCNT(Py_True) + n);
    Py_DECREF(answer);
  }
  const double ns = (now_ns() - start) / calls;
  free(keys);
  return failed ? -1 : ns;
}
