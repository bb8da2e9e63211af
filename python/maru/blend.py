"""Reuse beyond prefixes: chunks of tokens that were computed once, found anywhere in a prompt.

    with maru.Client() as client:
        spans = Spans(client, "model, layout", window=256)
        spans.store(tokens, position, kv_bytes)             # a chunk of 256 tokens, with its bytes
        with spans.find(prompt) as found:                   # all chunks in it, pinned together
            for span in found:
                kv = numpy.frombuffer(span.views[0].data, numpy.float16).reshape(layers, 2, 256, heads, head_dim)
                keys = rerotate(kv[:, 0], span.old_start, span.new_start, rope, out=engine_keys)

maru/spans.h says what a chunk is and what finding promises. rerotate and Rope are those of maru.rope. The operations that
LMCache's blend server has are in Operations.
"""
from .blend_operations import Key, MatchResult, Operations, UnifiedLookupResult
from .blend_spans import Found, Span, Spans
from .rope import Rope, rerotate

__all__ = ["Found", "Key", "MatchResult", "Operations", "Rope", "Span", "Spans", "UnifiedLookupResult", "rerotate"]
