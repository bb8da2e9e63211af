#!/usr/bin/python3
"""A storage advisor: which prefixes of a pool are hot, which are cold, and which blocks no prompt can reach.

    storage_advisor.py EVENTS REPLAY [--window SECONDS] [--every SECONDS]

A storage system runs beside the engines, subscribes to the stream of maru-eventd (or of an engine of vLLM), and builds a tree of
prefixes of its own. It never asks the pool. With the tree it may choose the blocks for its fast devices. A prefix is hot when it
grew within the window, and cold otherwise. The stream has not told the parent of an orphan, so no lookup from the beginning of a
prompt reaches it. EVENTS and REPLAY are ZeroMQ endpoints, such as tcp://127.0.0.1:5557. Needs python3-zmq and python3-msgpack.
"""
import argparse
import collections
import struct
import time
from typing import NamedTuple, Optional

import msgpack
import zmq

END = b"\xff" * 8  # the sequence that ends a replay


class Block(NamedTuple):
    parent: Optional[int]  # its hash; None: a prompt begins here
    tokens: int
    since: float


class Tree:
    """The blocks by their hashes of 64 bits."""

    def __init__(self):
        self.blocks = {}
        self.children = collections.defaultdict(set)

    def apply(self, payload):
        when, events, _rank = msgpack.unpackb(payload)
        for event in events:
            if event["type"] == "BlockStored":
                parent = event["parent_block_hash"]
                for name in event["block_hashes"]:
                    self.forget(name)  # it may have had another parent
                    self.blocks[name] = Block(parent, event["block_size"], when)
                    self.children[parent].add(name)
                    parent = name
            elif event["type"] == "BlockRemoved":
                for name in event["block_hashes"]:
                    self.forget(name)
            elif event["type"] == "AllBlocksCleared":
                self.blocks.clear()
                self.children.clear()

    def forget(self, name):
        if (block := self.blocks.pop(name, None)) is not None:
            self.children[block.parent].discard(name)

    def below(self, name):
        """A block and all that follow it."""
        found = [name]
        for one in found:
            found += self.children.get(one, ())
        return found

    def advice(self, now, window_s):
        """For each first block of a prompt, and each orphan: its hash, and the blocks and tokens from there on; most tokens first."""
        advice = {"hot": [], "cold": [], "orphaned": []}
        for name, block in self.blocks.items():
            if block.parent in self.blocks:
                continue
            subtree = [self.blocks[one] for one in self.below(name)]
            is_hot = any(now - one.since <= window_s for one in subtree)
            kind = "orphaned" if block.parent is not None else "hot" if is_hot else "cold"
            advice[kind].append((name, len(subtree), sum(one.tokens for one in subtree)))
        return {kind: sorted(found, key=lambda one: -one[2]) for kind, found in advice.items()}


class Stream:
    """Batches in the order of their sequences; those that the subscriber missed come from the replay."""

    def __init__(self, context, events, replay, tree):
        self.context, self.replay, self.tree = context, replay, tree
        self.next = 0
        self.subscriber = context.socket(zmq.SUB)
        self.subscriber.subscribe(b"")
        self.subscriber.connect(events)
        self.catch_up()

    def take(self, sequence, payload):
        if sequence >= self.next:  # a lower one was in a replay
            self.tree.apply(payload)
            self.next = sequence + 1

    def catch_up(self):
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(self.replay)
        dealer.send_multipart([b"", struct.pack(">Q", self.next)])
        while dealer.poll(5000):
            *_, sequence, payload = dealer.recv_multipart()
            if sequence == END:
                break
            self.take(int.from_bytes(sequence, "big"), payload)
        dealer.close(0)

    def read(self, until):
        while (left := until - time.monotonic()) > 0:
            if self.subscriber.poll(int(left * 1000) + 1):
                _topic, sequence, payload = self.subscriber.recv_multipart()
                if int.from_bytes(sequence, "big") > self.next:
                    self.catch_up()
                self.take(int.from_bytes(sequence, "big"), payload)

    def close(self):
        self.subscriber.close(0)


def main():
    parser = argparse.ArgumentParser(description="Hot, cold and orphaned prefixes of a pool, from its events.")
    parser.add_argument("events")
    parser.add_argument("replay")
    parser.add_argument("--window", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS")
    arguments = parser.parse_args()
    tree = Tree()
    stream = Stream(zmq.Context(), arguments.events, arguments.replay, tree)
    while True:
        stream.read(time.monotonic() + arguments.every)
        print(f"{len(tree.blocks)} blocks", flush=True)
        for kind, found in tree.advice(time.time(), arguments.window).items():
            for name, blocks, tokens in found[:10]:
                print(f"{kind:9} {name:016x} {blocks:6} blocks {tokens:8} tokens", flush=True)


if __name__ == "__main__":
    main()
