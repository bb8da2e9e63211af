"""The thread that stores: what waits is bounded, and those who are about to overwrite it wait."""
import logging
import threading

from maru.store_queue import StoreQueue


class Held:
    """Stores each item when it is told to."""

    def __init__(self):
        self.may_go = threading.Semaphore(0)
        self.has_begun = threading.Semaphore(0)
        self.stored = []

    def __call__(self, item):
        self.has_begun.release()
        assert self.may_go.acquire(timeout=600)
        self.stored.append(item)


def beside(work):
    """Runs it on a thread, which is returned."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waits(thread):
    """Whether it goes on. One that should and does not has ended by the time that this takes."""
    thread.join(0.5)
    return thread.is_alive()


def test_items_are_stored_in_their_order_by_another_thread():
    seen = []
    queue = StoreQueue(lambda item: seen.append((item, threading.current_thread().name)), 100)
    for item in range(50):
        queue.put(item, {item}, 10)
    queue.wait_for(None)
    assert seen == [(item, "maru-store") for item in range(50)]
    queue.close()


def test_only_those_who_overwrite_what_waits_have_to_wait():
    held = Held()
    queue = StoreQueue(held, 100)
    queue.put("a", {1, 2}, 10)
    queue.put("b", {3}, 10)
    queue.wait_for([4, 5])
    queue.wait_for([])
    assert held.stored == []
    overwriting = beside(lambda: queue.wait_for([0, 2]))
    held.has_begun.acquire()
    assert waits(overwriting)
    held.may_go.release()
    overwriting.join(600)
    assert not overwriting.is_alive() and held.stored == ["a"]
    everything = beside(lambda: queue.wait_for(None))
    held.has_begun.acquire()
    assert waits(everything)
    held.may_go.release()
    everything.join(600)
    assert not everything.is_alive() and held.stored == ["a", "b"]
    queue.close()


def test_what_waits_is_bounded_and_one_item_may_be_larger():
    held = Held()
    queue = StoreQueue(held, 100)
    queue.put("large", {1}, 1000)
    put = []
    more = beside(lambda: [queue.put(item, {item}, 60) or put.append(item) for item in range(2)])
    held.has_begun.acquire()
    assert waits(more) and not put
    held.may_go.release()
    held.has_begun.acquire()
    assert waits(more) and 1 not in put and held.stored == ["large"], "two of 60 are more than 100"
    held.may_go.release(2)
    more.join(600)
    assert put == [0, 1]
    queue.close()
    assert held.stored == ["large", 0, 1], "closed when all is stored"


def test_a_mistake_in_a_store_is_logged_and_the_next_is_stored(caplog):
    stored = []

    def store(item):
        if item == "bad":
            raise ValueError("a mistake")
        stored.append(item)

    queue = StoreQueue(store, 100)
    with caplog.at_level(logging.ERROR, "maru"):
        for item in ("a", "bad", "b"):
            queue.put(item, {0}, 50)
        queue.wait_for([0])
    assert stored == ["a", "b"] and "a mistake" in caplog.text
    queue.close()


def test_without_a_thread_it_is_stored_at_once(monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    stored = []
    queue = StoreQueue(stored.append, 100)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        queue.put("a", {0}, 10)
        assert stored == ["a"]
    queue.wait_for(None)
    queue.put("b", {0}, 10)
    queue.close()
    assert stored == ["a", "b"]
