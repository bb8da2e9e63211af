#include "daemon/eventd/otlp.h"

#include "daemon/base/plain_text.h"
#include "daemon/version.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <protozero/pbf_builder.hpp>
#include <protozero/pbf_message.hpp>

namespace maru::eventd {
namespace {

using format::Span;
using format::SpanOperation;
using format::SpanReason;

// -- opentelemetry-proto: the fields that are used ---------------------------------------------------------------------

enum class Request : protozero::pbf_tag_type { kResourceSpans = 1 };
enum class ResourceSpans : protozero::pbf_tag_type { kResource = 1, kScopeSpans = 2 };
enum class Resource : protozero::pbf_tag_type { kAttributes = 1 };
enum class ScopeSpans : protozero::pbf_tag_type { kScope = 1, kSpans = 2 };
enum class Scope : protozero::pbf_tag_type { kName = 1, kVersion = 2 };
enum class Field : protozero::pbf_tag_type {
  kTraceId = 1,
  kSpanId = 2,
  kParentSpanId = 4,
  kName = 5,
  kKind = 6,
  kStart = 7,
  kEnd = 8,
  kAttributes = 9,
  kStatus = 15,
  kFlags = 16
};
enum class Status : protozero::pbf_tag_type { kMessage = 2, kCode = 3 };
enum class KeyValue : protozero::pbf_tag_type { kKey = 1, kValue = 2 };
enum class AnyValue : protozero::pbf_tag_type { kString = 1, kInt = 3 };
enum class Response : protozero::pbf_tag_type { kPartialSuccess = 1 };
enum class Partial : protozero::pbf_tag_type { kRejected = 1, kMessage = 2 };

enum SpanKind : int32_t { kInternal = 1, kServer = 2, kClient = 3 };
constexpr int32_t kStatusError = 2;

template <typename T>
using Builder = protozero::pbf_builder<T>;

struct Kind {
  const char* name;
  SpanKind kind;
};

Kind kind_of(SpanOperation operation) {
  switch (operation) {
    case SpanOperation::kRequest: return {"maru.request", kInternal};
    case SpanOperation::kAlloc: return {"maru.alloc", kInternal};
    case SpanOperation::kStore: return {"maru.store", kInternal};
    case SpanOperation::kMatch: return {"maru.match", kInternal};
    case SpanOperation::kRetrieve: return {"maru.retrieve", kInternal};
    case SpanOperation::kDelete: return {"maru.delete", kInternal};
    case SpanOperation::kRent: return {"maru.rent", kClient};
    case SpanOperation::kServe: return {"marud.rent", kServer};
    case SpanOperation::kEvict: return {"marud.evict", kInternal};
    case SpanOperation::kExists: return {"maru.exists", kInternal};
  }
  return {"maru.unknown", kInternal};
}

const char* text_of(SpanReason reason) {
  switch (reason) {
    case SpanReason::kNone: break;
    case SpanReason::kBackground: return "background";
    case SpanReason::kExpired: return "expired";
    case SpanReason::kAdmin: return "admin";
  }
  return nullptr;
}

bool is_of_marud(const Span& span) {
  return span.operation == SpanOperation::kServe || span.operation == SpanOperation::kEvict;
}

// Most significant byte first, as identities are written.
void append_id(std::string& bytes, uint64_t id) {
  for (int shift = 56; shift >= 0; shift -= 8) bytes += char(id >> shift & 0xFF);
}

template <typename Owner>
void add_text(Builder<Owner>& owner, Owner tag, std::string_view key, std::string_view value) {
  Builder<KeyValue> pair(owner, tag);
  pair.add_string(KeyValue::kKey, key.data(), key.size());
  Builder<AnyValue> any(pair, KeyValue::kValue);
  any.add_string(AnyValue::kString, value.data(), value.size());
}

template <typename Owner>
void add_number(Builder<Owner>& owner, Owner tag, std::string_view key, uint64_t value) {
  Builder<KeyValue> pair(owner, tag);
  pair.add_string(KeyValue::kKey, key.data(), key.size());
  Builder<AnyValue> any(pair, KeyValue::kValue);
  any.add_int64(AnyValue::kInt, int64_t(std::min<uint64_t>(value, INT64_MAX)));
}

// That a key is absent is an answer, and no error.
bool is_error(const Span& span) { return span.result < 0 && span.result != -ENOENT; }

void add_span(Builder<ScopeSpans>& scope, const Span& span) {
  Builder<Field> field(scope, ScopeSpans::kSpans);
  const auto [name, kind] = kind_of(span.operation);
  std::string id;
  append_id(id, span.trace_high);
  append_id(id, span.trace_low);
  field.add_bytes(Field::kTraceId, id);
  id.clear();
  append_id(id, span.id);
  field.add_bytes(Field::kSpanId, id);
  if (span.parent != 0) {
    id.clear();
    append_id(id, span.parent);
    field.add_bytes(Field::kParentSpanId, id);
  }
  field.add_string(Field::kName, name);
  field.add_enum(Field::kKind, kind);
  field.add_fixed64(Field::kStart, span.begun_ns);
  field.add_fixed64(Field::kEnd, span.ended_ns);
  if (span.thread != 0) add_number(field, Field::kAttributes, "thread.id", span.thread);
  if (span.keys != 0) add_number(field, Field::kAttributes, kind == kInternal ? "maru.keys" : "maru.runs", span.keys);
  if (span.bytes != 0) add_number(field, Field::kAttributes, "maru.bytes", span.bytes);
  if (span.operation != SpanOperation::kRequest && kind == kInternal)
    add_number(field, Field::kAttributes, "maru.blocks", span.blocks);
  if (span.turns != 0) add_number(field, Field::kAttributes, "maru.turns", span.turns);
  if (span.pages != 0) add_number(field, Field::kAttributes, "maru.pages", span.pages);
  if (const char* reason = text_of(span.reason)) add_text(field, Field::kAttributes, "maru.reason", reason);
  if (is_error(span)) {
    const char* error = ::strerrorname_np(-span.result);
    add_text(field, Field::kAttributes, "error.type", error ? error : std::to_string(-span.result));
    Builder<Status> status(field, Field::kStatus);
    const char* words = ::strerrordesc_np(-span.result);
    status.add_string(Status::kMessage, words ? words : "unknown error");
    status.add_enum(Status::kCode, kStatusError);
  }
  field.add_fixed32(Field::kFlags, span.flags);
}

struct Service {
  std::string_view name;
  const SpanSource* client;  // null: marud
  std::string_view pool;
};

template <typename Wanted>
void add_resource(Builder<Request>& request, const Service& service, const std::string& host,
                  const std::vector<Span>& spans, const Wanted& is_wanted) {
  Builder<ResourceSpans> of_resource(request, Request::kResourceSpans);
  {
    Builder<Resource> resource(of_resource, ResourceSpans::kResource);
    add_text(resource, Resource::kAttributes, "service.name", service.name);
    if (!host.empty()) add_text(resource, Resource::kAttributes, "host.name", host);
    if (service.client != nullptr) {
      add_number(resource, Resource::kAttributes, "process.pid", service.client->process);
      add_number(resource, Resource::kAttributes, "maru.lane", service.client->lane);
    }
    add_text(resource, Resource::kAttributes, "maru.pool", service.pool);
    add_text(resource, Resource::kAttributes, "telemetry.sdk.name", "maru");
    add_text(resource, Resource::kAttributes, "telemetry.sdk.language", "cpp");
    add_text(resource, Resource::kAttributes, "telemetry.sdk.version", daemon::kVersionText);
  }
  Builder<ScopeSpans> of_scope(of_resource, ResourceSpans::kScopeSpans);
  {
    Builder<Scope> scope(of_scope, ScopeSpans::kScope);
    scope.add_string(Scope::kName, "libmaru");
    scope.add_string(Scope::kVersion, daemon::kVersionText);
  }
  for (const Span& span : spans)
    if (is_wanted(span)) add_span(of_scope, span);
}

}  // namespace

std::string encode_traces(const SpanBatch& batch, const std::string& host) {
  std::string body;
  Builder<Request> request(body);
  for (const SpanBatch::Part& part : batch.parts) {
    const auto of_marud = size_t(std::count_if(part.spans.begin(), part.spans.end(), is_of_marud));
    if (of_marud != part.spans.size())
      add_resource(request, {part.source.service, &part.source, part.source.pool}, host, part.spans,
                   [](const Span& span) { return !is_of_marud(span); });
    if (of_marud != 0) add_resource(request, {"marud", nullptr, part.source.pool}, host, part.spans, is_of_marud);
  }
  return body;
}

PartialSuccess decode_export_response(std::string_view body) {
  PartialSuccess success;
  try {
    protozero::pbf_message<Response> response(body.data(), body.size());
    while (response.next(Response::kPartialSuccess, protozero::pbf_wire_type::length_delimited)) {
      protozero::pbf_message<Partial> partial(response.get_message());
      while (partial.next()) {
        switch (partial.tag_and_type()) {
          case protozero::tag_and_type(Partial::kRejected, protozero::pbf_wire_type::varint):
            success.rejected = uint64_t(std::max<int64_t>(0, partial.get_int64()));
            break;
          case protozero::tag_and_type(Partial::kMessage, protozero::pbf_wire_type::length_delimited): {
            constexpr size_t kMessageMax = 512;
            const auto text = partial.get_view();
            success.message = daemon::plain_text({text.data(), text.size()}, kMessageMax);
            break;
          }
          default: partial.skip();
        }
      }
    }
  } catch (const protozero::exception&) {  // keeps the fields before the damage
  }
  return success;
}

}  // namespace maru::eventd
