"""Decodes requests of OTLP: reads lines of hexadecimal digits, each a request, and writes for each a line of JSON, its spans.

  otlp_decoder.py FOLDER     by a module otlp_pb2 there, which protoc makes of otlp.proto
  otlp_decoder.py real       by the package opentelemetry-proto
"""
import json
import sys

if sys.argv[1] == "real":
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
else:
    sys.path.insert(0, sys.argv[1])
    import otlp_pb2 as service


def attributes(pairs):
    found = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
    assert len(found) == len(pairs), "an attribute comes twice"
    return found


def spans_of(body):
    request = service.ExportTraceServiceRequest()
    request.ParseFromString(body)
    request.DiscardUnknownFields()
    # Equal again only when each field is known, has the type that is declared, and comes in its order.
    assert request.SerializeToString() == body, "the request has fields that OTLP does not"
    spans = []
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                spans.append({"resource": attributes(resource.resource.attributes), "scope": scope.scope.name,
                              "trace": span.trace_id.hex(), "id": span.span_id.hex(), "parent": span.parent_span_id.hex(),
                              "name": span.name, "kind": int(span.kind), "begin": span.start_time_unix_nano,
                              "end": span.end_time_unix_nano, "attributes": attributes(span.attributes),
                              "error": span.status.message if span.status.code == 2 else "", "flags": span.flags})
    return spans


for line in sys.stdin:
    print(json.dumps(spans_of(bytes.fromhex(line))), flush=True)
