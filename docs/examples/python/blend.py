"""Documents computed alone, put into prompts in other orders: what reuse costs in exactness, and what it saves in time.

A small transformer with random weights stores the keys and values of four documents. A prompt then has them in another order,
behind a question's beginning. As CacheBlend describes, the tokens whose keys and values differ most from the stored ones, as the
second layer sees it, are recomputed, and all others are taken from the pool, with their keys moved to their new place.
"""
import argparse
import time

import maru
import numpy
from maru import blend

LAYERS, HEADS, HEAD_DIM, VOCABULARY, WINDOW = 6, 8, 32, 2000, 32
WIDTH = HEADS * HEAD_DIM
ROPE = blend.Rope(head_dim=HEAD_DIM)
FREQUENCIES = numpy.array(ROPE.frequencies(), dtype=numpy.float32)


class Model:
    def __init__(self, seed):
        random = numpy.random.default_rng(seed)

        def weights(rows, columns):
            return (random.standard_normal((rows, columns)) / numpy.sqrt(rows)).astype(numpy.float32)

        self.embedding = random.standard_normal((VOCABULARY, WIDTH)).astype(numpy.float32)
        self.unembedding = weights(WIDTH, VOCABULARY)
        self.layers = [{"query": weights(WIDTH, WIDTH), "key": weights(WIDTH, WIDTH), "value": weights(WIDTH, WIDTH),
                        "out": weights(WIDTH, WIDTH), "up": weights(WIDTH, 2 * WIDTH), "down": weights(2 * WIDTH, WIDTH)}
                       for _ in range(LAYERS)]

    def run(self, tokens, stored=None, is_stored=None, share=1.0):
        """The logits of all tokens that were computed to the end, and the keys and values [layer, 2, token, head, element].

        stored, is_stored  keys and values of tokens, and which tokens have some; None: everything is computed
        share              of the stored tokens, how many are recomputed
        """
        positions = numpy.arange(len(tokens))
        cache = numpy.zeros((LAYERS, 2, len(tokens), HEADS, HEAD_DIM), numpy.float32) if stored is None else stored.copy()
        is_stored = numpy.zeros(len(tokens), bool) if stored is None else is_stored
        x = self.embedding[tokens]
        rows = positions if share > 0 else positions[~is_stored]
        for index, layer in enumerate(self.layers):
            if index == 1 and share > 0 and is_stored.any():
                rows = self.most_different(layer, x, cache[1], is_stored, share)
            h = normed(x[rows])
            cache[index, 0, rows] = turned(heads_of(h @ layer["key"]), rows)
            cache[index, 1, rows] = heads_of(h @ layer["value"])
            query = turned(heads_of(h @ layer["query"]), rows)
            x[rows] += attention(query, cache[index], rows).reshape(len(rows), WIDTH) @ layer["out"]
            x[rows] += numpy.maximum(normed(x[rows]) @ layer["up"], 0) @ layer["down"]
        return normed(x[rows]) @ self.unembedding, cache

    def most_different(self, layer, x, cache, is_stored, share):
        """The tokens to recompute from the second layer on: those that are not stored, and the share whose keys and values
        differ most."""
        h = normed(x)
        keys = turned(heads_of(h @ layer["key"]), numpy.arange(len(x)))
        difference = ((keys - cache[0]) ** 2 + (heads_of(h @ layer["value"]) - cache[1]) ** 2).sum((1, 2))
        difference[~is_stored] = numpy.inf
        wanted = (~is_stored).sum() + round(share * is_stored.sum())
        return numpy.sort(numpy.argsort(-difference, kind="stable")[:wanted])


def normed(x):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def heads_of(x):
    return x.reshape(len(x), HEADS, HEAD_DIM)


def turned(x, positions):
    angles = positions[:, None, None].astype(numpy.float32) * FREQUENCIES
    a, b = x[..., :HEAD_DIM // 2], x[..., HEAD_DIM // 2:]
    return numpy.concatenate([a * numpy.cos(angles) - b * numpy.sin(angles), a * numpy.sin(angles) + b * numpy.cos(angles)], -1)


def attention(query, cache, rows):
    scores = query.transpose(1, 0, 2) @ cache[0].transpose(1, 2, 0) / numpy.float32(numpy.sqrt(HEAD_DIM))
    scores[:, numpy.arange(cache.shape[1])[None, :] > rows[:, None]] = -numpy.inf
    scores = numpy.exp(scores - scores.max(-1, keepdims=True))
    return ((scores / scores.sum(-1, keepdims=True)) @ cache[1].transpose(1, 0, 2)).transpose(1, 0, 2)


def store_alone(spans, model, document):
    """Computes a document as if it were the whole prompt, and stores its chunks."""
    _, cache = model.run(document)
    for start in range(0, len(document), WINDOW):
        spans.store(document[start:start + WINDOW], start, numpy.ascontiguousarray(cache[:, :, start:start + WINDOW]))


def load(spans, prompt):
    """What the pool has of a prompt, each chunk's keys at their new place; and which tokens these are."""
    cache = numpy.zeros((LAYERS, 2, len(prompt), HEADS, HEAD_DIM), numpy.float32)
    is_stored = numpy.zeros(len(prompt), bool)
    with spans.find(prompt) as found:
        for span in found:
            chunk = numpy.frombuffer(span.views[0].data, numpy.float32).reshape(LAYERS, 2, WINDOW, HEADS, HEAD_DIM)
            place = cache[:, :, span.new_start:span.new_end]
            place[:, 1] = chunk[:, 1]
            blend.rerotate(chunk[:, 0], span.old_start, span.new_start, ROPE, out=place[:, 0])
            is_stored[span.new_start:span.new_end] = True
        return cache, is_stored, len(found)


def timed(call):
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=4, help="of each document, 32 tokens each")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = numpy.random.default_rng(arguments.seed)
    model = Model(arguments.seed)
    shares = (0.0, 0.05, 0.15, 0.3, 0.5, 1.0)
    rows = {share: [] for share in shares}
    with maru.Client() as client:
        spans = blend.Spans(client, f"numpy model, seed {arguments.seed}, float32", WINDOW)
        documents = [random.integers(0, VOCABULARY, arguments.chunks * WINDOW).astype(numpy.uint32) for _ in range(4)]
        for document in documents:
            store_alone(spans, model, document)
        for _ in range(arguments.prompts):
            order = random.permutation(4)
            question = [random.integers(0, VOCABULARY, n).astype(numpy.uint32) for n in (13, 24)]
            prompt = numpy.concatenate([question[0], *(documents[i] for i in order), question[1]])
            (full, _), full_seconds = timed(lambda: model.run(prompt))
            for share in shares:
                def answer():
                    cache, is_stored, found = load(spans, prompt)
                    return model.run(prompt, cache, is_stored, share)[0], found
                (logits, found), seconds = timed(answer)
                tail = len(question[1])
                difference = numpy.abs(logits[-tail:] - full[-tail:]).mean() / full[-tail:].std()
                same = (logits[-tail:].argmax(-1) == full[-tail:].argmax(-1)).mean()
                rows[share].append((difference, same, seconds / full_seconds))
        print(f"{len(prompt)} tokens, {found} chunks found, {found * WINDOW} tokens of them stored")
    print("| recomputed | mean difference of logits / their spread | same best token | time / full computation |")
    print("|---|---|---|---|")
    for share in shares:
        difference, same, _ = numpy.array(rows[share]).mean(0)
        seconds = numpy.median([row[2] for row in rows[share]])
        print(f"| {share:.0%} | {difference:.4f} | {same:.0%} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
