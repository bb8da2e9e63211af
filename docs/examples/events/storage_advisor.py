#!/usr/bin/python3
"""A storage advisor: builds the tree of prefixes of a pool from maru-eventd's stream, and says which are hot, cold and orphaned.

    storage_advisor.py EVENTS REPLAY [--seconds N] [--top N] [--json]
    storage_advisor.py tcp://127.0.0.1:5557 tcp://127.0.0.1:5558

Hot: prefixes below which most blocks came while it watched. Cold: chains that did not change for longest, so that they may go to
slower storage. Orphaned: blocks whose parent is not there; a pool has none, but a relay's engine may drop a prefix's beginning.
Needs Debian's python3-zmq and python3-msgpack.
"""
import argparse
import json
import time

import msgpack
import zmq

END = b"\xff" * 8


class Tree:
    def __init__(self):
        self.parents = {}  # hash -> its parent's, or None
        self.children = {}  # hash -> set of hashes
        self.changed = {}  # hash -> when a block came or went right below it, or itself came
        self.born = {}  # hash -> how many blocks came below it

    def apply(self, payload):
        seconds, events, _ = msgpack.unpackb(payload)
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.__init__()
            elif event["type"] == "BlockRemoved":
                for one in event["block_hashes"]:
                    self.remove(one, seconds)
            else:
                parent = event["parent_block_hash"]
                for one in event["block_hashes"]:
                    self.store(one, parent, seconds)
                    parent = one

    def store(self, one, parent, seconds):
        self.parents[one] = parent
        self.children.setdefault(parent, set()).add(one)
        self.changed[one] = self.changed[parent] = seconds
        for above in self.above(one):
            self.born[above] = self.born.get(above, 0) + 1

    def remove(self, one, seconds):
        if one not in self.parents:
            return
        parent = self.parents.pop(one)
        self.children.get(parent, set()).discard(one)
        self.changed[parent] = seconds
        self.changed.pop(one, None)
        self.born.pop(one, None)

    def above(self, one):
        """Its ancestors, the nearest first."""
        seen = {one}
        while (one := self.parents.get(one)) in self.parents and one not in seen:
            seen.add(one)
            yield one

    def advise(self, top):
        leaves = [one for one in self.parents if not self.children.get(one)]
        orphans = [one for one, parent in self.parents.items() if parent is not None and parent not in self.parents]
        return {"blocks": len(self.parents), "prompts": len(leaves),
                "hot": sorted(self.born, key=self.born.get, reverse=True)[:top],
                "cold": sorted(leaves, key=self.changed.get)[:top], "orphaned": orphans[:top]}


class Stream:
    """The batches, each once; those that were missed are asked for."""

    def __init__(self, events, replay):
        context = zmq.Context.instance()
        self.sub, self.dealer, self.next = context.socket(zmq.SUB), context.socket(zmq.DEALER), 0
        self.sub.subscribe(b"")
        self.sub.connect(events)
        self.dealer.connect(replay)

    def batches(self, seconds):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not self.sub.poll(left * 1000):
                return
            _, number, payload = self.sub.recv_multipart()
            number = int.from_bytes(number, "big")
            if number > self.next:
                yield from self.missed()
            if number >= self.next:
                self.next = number + 1
                yield payload

    def missed(self):
        self.dealer.send_multipart([b"", self.next.to_bytes(8, "big")])
        while self.dealer.poll(5000):
            *_, number, payload = self.dealer.recv_multipart()
            if number == END:
                return
            self.next = int.from_bytes(number, "big") + 1
            yield payload


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events")
    parser.add_argument("replay")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tree = Tree()
    for payload in Stream(arguments.events, arguments.replay).batches(arguments.seconds):
        tree.apply(payload)
    advice = tree.advise(arguments.top)
    if arguments.json:
        print(json.dumps(advice))
        return
    print(f"{advice['blocks']} blocks, {advice['prompts']} prompts")
    for kind in ("hot", "cold", "orphaned"):
        print(f"{kind:9}", *(f"{one:016x}" for one in advice[kind]))


if __name__ == "__main__":
    main()
