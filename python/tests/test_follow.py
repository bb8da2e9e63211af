"""client.follow(): the blocks of a pool, and what happens to them."""
import asyncio
import threading

import pytest

import maru
from maru.follow import Follower, Kind


def take_until(follower, kind, keys=()):
    """The events up to one of this kind, of one of these keys if there are any. The pool has blocks of other tests."""
    events = []
    for event in follower:
        events.append(event)
        if event.kind == kind and (not keys or event.key in keys):
            return events
    raise AssertionError("the follower has ended")


def of(events, *keys):
    return [event for event in events if event.key in keys]


def test_a_snapshot_and_then_what_happens(client, key):
    a, b = f"{key} a".encode(), f"{key} b".encode()
    client.store_copy(a, b"text")
    client.store_copy(b, b"longer text", parent=a)
    with client.follow() as follower:
        events = take_until(follower, Kind.CURRENT)
        assert (events[0].kind, events[0].reason) == (Kind.RESET, "begin")
        stored = of(events, a, b)
        assert [(event.key, event.parent_key, event.length, event.depth) for event in stored] == [
            (a, None, 4, 0), (b, a, 11, 1)]
        assert all(event.kind == Kind.STORED and event.is_in_snapshot for event in stored)
        digest = maru.Digest(key.encode()[-16:])
        client.store_copy(digest, b"x", tenant="salt")
        new = take_until(follower, Kind.STORED, [digest])[-1]
        assert isinstance(new.key, maru.Digest)
        assert new.tenant == client.tenant("salt") and not new.is_in_snapshot
        client.delete(b)
        removed = take_until(follower, Kind.REMOVED, [b])[-1]
        assert (removed.reason, removed.block) == ("client", stored[1].block)
        assert follower.status()["is_current"]


def test_a_follower_needs_no_client(client, marud, key):
    client.store_copy(key, b"text")
    with Follower(str(marud.socket)) as follower:
        assert len(of(take_until(follower, Kind.CURRENT), key.encode())) == 1


def test_async_for(client, key):
    a, b = f"{key} a", f"{key} b"
    client.store_copy(a, b"text")

    async def follow():
        keys = []
        async for event in client.follow():
            if event.kind == Kind.CURRENT:
                client.store_copy(b, b"text")
            elif event.key in (a.encode(), b.encode()):
                keys.append(event.key)
            if len(keys) == 2:
                return keys

    assert asyncio.run(follow()) == [a.encode(), b.encode()]


def test_closing_ends_the_iteration_of_another_thread(client):
    follower = client.follow()
    take_until(follower, Kind.CURRENT)
    ended = threading.Event()

    def follow():
        for _ in follower:
            pass
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    follower.close()
    thread.join(30)
    assert ended.is_set()
    with pytest.raises(maru.ClosedError):
        follower.next(0)


def test_what_is_no_pool_is_refused(client, marud):
    with pytest.raises(maru.MaruError):
        Follower(str(marud.socket), "other")
    with pytest.raises(maru.MaruError):
        Follower("/nonexistent/socket")
