// Spans as an ExportTraceServiceRequest of OTLP 1 (opentelemetry-proto), in protobuf; and a collector's answer.
#pragma once

#include "daemon/eventd/span_intake.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace maru::eventd {

// A resource for each client, and one for marud: clients write the spans of marud, too.
std::string encode_traces(const SpanBatch& batch, const std::string& host);

// An ExportTraceServiceResponse: spans that the collector did not take, and why. Any bytes are safe.
struct PartialSuccess {
  uint64_t rejected = 0;
  std::string message;
};
PartialSuccess decode_export_response(std::string_view body);

}  // namespace maru::eventd
