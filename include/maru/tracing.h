/*
 * Spans of calls, for OpenTelemetry: the time of each call, and the request that it belongs to.
 *
 * A client that is traced writes a span for each call that allocates, stores, looks keys up, retrieves or deletes. marud's
 * work for the call has a span as well. The spans go into a ring in the client's own memory, without a system call.
 * maru-eventd gets that memory from the client, and sends the spans to a collector. A client does not wait for maru-eventd: it
 * overwrites the oldest spans. docs/tracing.md says which fields a span has, and how maru-eventd is set up. Without a call of
 * maru_set_tracing(), and without MARU_TRACING in the environment, nothing is traced.
 *
 * Results and errors are as in maru.h.
 */
#ifndef MARU_TRACING_H
#define MARU_TRACING_H

#include <maru/maru.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct maru_tracing_options {
  size_t size;
  const char *socket_path; /* where maru-eventd takes spans; NULL: /run/maru-eventd/spans.sock */
  /* That the ring holds: 64 to 65536, rounded up to a power of two; 0: 4096. The first call for a client decides. */
  uint32_t spans;
  uint32_t one_in; /* of the calls without a traceparent one in so many is traced; 0: none */
  uint64_t reserved[4];
} maru_tracing_options;

/* Traces this client's calls from now on, with these options; NULL: not any more. A program that never calls this is traced
 * where the environment has MARU_TRACING=SOCKET, and MARU_TRACING_ONE_IN=N (1 where that is not set), while it attaches.
 * Returns 0; or 1 when the client is traced, but no maru-eventd listens there yet. The session thread hands the ring out within
 * a second of maru-eventd's start, also after each restart of it; without a session thread call this again. Blocks for 50 ms at
 * most. Errors: -EMFILE no descriptors left; -ENOSYS the kernel has no memfd; -EINVAL; -ENOMEM. */
MARU_PUBLIC int maru_set_tracing(maru_client *client, const maru_tracing_options *options);

/* The request that the calling thread works for, as the W3C's header has it: "00-TRACE-PARENT-FLAGS" in hexadecimal digits.
 * Calls of this thread are part of that trace until the next call of this function; NULL: of no trace. Calls for a request
 * whose flags do not ask for tracing (their last bit) are not traced. Errors: -EINVAL the text is no traceparent, and nothing
 * has changed; -EAGAIN the process has no key left, pthread_key_create(3); -ENOMEM. */
MARU_PUBLIC int maru_set_traceparent(const char *traceparent);

/* The request of the calling thread, as it was set; an empty text: no request. ret_traceparent: room for 56 bytes. Errors:
 * -EINVAL; -EAGAIN as above. */
MARU_PUBLIC int maru_get_traceparent(char *ret_traceparent);

/* A request's whole way through this client, from its first call to its last: a span above the spans of the calls. Plain data:
 * it may begin in one thread and end in another. */
typedef struct maru_request_span {
  /* Of this span, for maru_set_traceparent() in the threads that work for the request. Empty: the client is not traced */
  char traceparent[56];
  uint64_t words[4]; /* the library's */
} maru_request_span;

/* Begins one. `traceparent`: of the caller's own span, or NULL for a request that begins here, of which one in one_in is
 * traced. Errors: -EINVAL, also a text that is no traceparent. */
MARU_PUBLIC int maru_begin_request(maru_client *client, const char *traceparent, maru_request_span *ret_span);

/* Ends it. `result`: 0 or above, or -errno, which makes the span an error's. A span with an empty traceparent ends as nothing,
 * and the call returns 0. Errors: -EINVAL the span's traceparent is none. */
MARU_PUBLIC int maru_end_request(maru_client *client, const maru_request_span *span, int result);

#ifdef __cplusplus
}
#endif

#endif
