// maru/tracing.h over Tracing.
#include "libmaru/client/handle.h"
#include "libmaru/client/sized.h"
#include "libmaru/client/thread_state.h"
#include "maru/tracing.h"

#include <cerrno>
#include <cstring>
#include <new>

using maru::client::Client;
using maru::client::OpenSpan;
using maru::client::ThreadState;
using maru::client::TraceContext;
using maru::client::Tracing;

namespace {

static_assert(sizeof(maru_request_span::traceparent) == maru::client::kTraceparentBytes + 1);

// The library's words in the caller's maru_request_span.
enum RequestWord : uint8_t { kParent, kBegunNs };

}  // namespace

extern "C" {

int maru_set_tracing(maru_client* client, const maru_tracing_options* given) {
  if (client == nullptr) return -EINVAL;
  Client& traced = *client->client;
  if (traced.is_child()) return -ECHILD;
  if (given == nullptr) {
    traced.stop_tracing();
    return 0;
  }
  maru_tracing_options options;
  if (const int status = maru::client::read_options(given, &options); status != 0) return status;
  if (options.spans > maru::format::kSpanSlotsMax) return -EINVAL;
  try {
    const auto is_taken = traced.trace(
        {options.socket_path ? options.socket_path : Tracing::kDefaultPath, options.spans, options.one_in});
    return is_taken ? int(!*is_taken) : -is_taken.error().code;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

int maru_set_traceparent(const char* traceparent) {
  TraceContext context;
  if (traceparent != nullptr && *traceparent != '\0') {
    const auto parsed = maru::client::parse_traceparent(traceparent);
    if (!parsed) return -EINVAL;
    context = *parsed;
  }
  if (const int code = maru::client::make_thread_state_key(); code != 0) return -code;
  ThreadState* state = maru::client::try_thread_state();
  if (state == nullptr) return -ENOMEM;
  state->request = context;
  return 0;
}

int maru_get_traceparent(char* ret_traceparent) {
  if (ret_traceparent == nullptr) return -EINVAL;
  if (const int code = maru::client::make_thread_state_key(); code != 0) return -code;
  char text[maru::client::kTraceparentBytes + 1] = {};
  const ThreadState* state = maru::client::thread_state_if_any();
  if (state != nullptr && state->request.is_some()) maru::client::format_traceparent(state->request, text);
  std::memcpy(ret_traceparent, text, sizeof(text));
  return 0;
}

int maru_begin_request(maru_client* client, const char* traceparent, maru_request_span* ret_span) {
  if (client == nullptr || ret_span == nullptr) return -EINVAL;
  TraceContext above;
  if (traceparent != nullptr && *traceparent != '\0') {
    const auto parsed = maru::client::parse_traceparent(traceparent);
    if (!parsed) return -EINVAL;
    above = *parsed;
  }
  if (client->client->is_child()) return -ECHILD;
  maru_request_span begun = {};
  if (Tracing* tracing = client->client->tracing()) {
    const uint64_t number = tracing->take_number();
    TraceContext context = tracing->make_context(number, above);
    if (!above.is_some() && !tracing->takes_request()) context.flags = 0;  // nor are the calls for it traced
    maru::client::format_traceparent(context, begun.traceparent);
    begun.words[kParent] = above.span;
    begun.words[kBegunNs] = maru::client::unix_ns();
  }
  *ret_span = begun;
  return 0;
}

int maru_end_request(maru_client* client, const maru_request_span* span, int result) {
  if (client == nullptr || span == nullptr) return -EINVAL;
  if (client->client->is_child()) return -ECHILD;
  Tracing* tracing = client->client->tracing();
  if (tracing == nullptr || span->traceparent[0] == '\0') return 0;  // it is not traced, or not any more
  const auto context = maru::client::parse_traceparent({span->traceparent, maru::client::kTraceparentBytes});
  if (!context) return -EINVAL;
  const OpenSpan open{tracing, *context, span->words[kParent], span->words[kBegunNs]};
  if (context->is_sampled()) tracing->write(open.ended(maru::format::SpanOperation::kRequest, result));
  return 0;
}

}  // extern "C"
