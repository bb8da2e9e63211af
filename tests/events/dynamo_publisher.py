"""Publishes as an engine under Dynamo does, by Dynamo's own KvEventPublisher: reads lines of JSON, each blocks that are stored
or removed, and answers each with a line. NATS_SERVER in the environment names the server.
dynamo_publisher.py WORKER BLOCK_TOKENS"""
import asyncio
import json
import sys

from dynamo.llm import KvEventPublisher
from dynamo.runtime import DistributedRuntime


def signed(number):
    return number - (1 << 64) if number >= 1 << 63 else number


def publish(publisher, event, block_tokens):
    hashes = [signed(one) for one in event["hashes"]]
    if event["kind"] == "removed":
        publisher.publish_removed(hashes)
    else:
        parent = None if event["parent"] is None else signed(event["parent"])
        publisher.publish_stored(event["tokens"], [block_tokens] * len(hashes), hashes, parent)


async def main():
    worker, block_tokens = int(sys.argv[1]), int(sys.argv[2])
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "mem", "tcp", event_plane="nats")
    publisher = KvEventPublisher(runtime.endpoint("ns.backend.generate"), worker_id=worker, kv_block_size=block_tokens)
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        publish(publisher, json.loads(line), block_tokens)
        print("done", flush=True)
    runtime.shutdown()


asyncio.run(main())
