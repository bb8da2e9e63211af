"""maru.aio: that the loop goes on while a call waits, and that nothing is lost when somebody stops waiting."""
import asyncio
import os
import signal
import socket
import threading

import pytest

import maru
import maru.aio
from conftest import PAGE
from with_marud import Marud


@pytest.fixture
def own(marud_program):
    with Marud(marud_program, size="16MiB") as running:
        yield running


async def turns_until(task):
    """How often the loop comes round while the task is not done."""
    turns = 0
    while not task.done():
        await asyncio.sleep(0.01)
        turns += 1
    return turns


def test_blocks_go_in_and_out(marud, digests):
    async def run():
        async with maru.aio.Client(str(marud.socket)) as client:
            buffers = await client.alloc_batch(PAGE, 4)
            for i, buffer in enumerate(buffers):
                buffer.data[:] = bytes([i]) * PAGE
            stored = await client.store_chain(digests[:4], buffers)
            assert stored.new_blocks == 4
            assert (await client.store_copy(digests[4], b"five", parent=stored.blocks[-1])).is_new
            assert client.exists(digests[0]) and client.exists_batch(digests[:6]).tolist() == [True] * 5 + [False]
            with client.match_prefix(digests) as match:
                assert match.blocks == 5
            assert bytes(client.retrieve(digests[4]).data) == b"five"
            assert client.retrieve_batch(digests[:1])[0].data[0] == 0
            buffer = await client.alloc(PAGE)
            assert (await client.store(digests[9], buffer)).is_new and client.delete(digests[9])
            assert client.delete_batch(digests[4:3:-1]).tolist() == [True]
            assert await client.delete_tree(digests[0]) == 4
            await client.reattach()

    asyncio.run(run())


def test_the_loop_goes_on_while_marud_does_not_answer(own):
    async def run():
        async with maru.aio.Client(str(own.socket), timeout_ms=8000) as client:
            os.kill(own.process.pid, signal.SIGSTOP)
            try:
                held = []

                async def fill():
                    while True:
                        held.append(await client.alloc(1 << 20))

                task = asyncio.ensure_future(fill())
                turns = await turns_until(task)
                with pytest.raises(maru.DaemonTimeoutError):
                    task.result()
                assert turns > 5
            finally:
                os.kill(own.process.pid, signal.SIGCONT)

    asyncio.run(run())


def test_the_loop_goes_on_while_attaching(tmp_path):
    """Somebody who takes the connection and says nothing."""
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path)
        silent.listen(8)

        async def run():
            task = asyncio.ensure_future(maru.aio.Client(path, timeout_ms=1000).attach())
            turns = await turns_until(task)
            with pytest.raises(maru.DaemonTimeoutError):
                task.result()
            assert turns > 5

        asyncio.run(run())


def test_what_comes_after_somebody_stopped_waiting_is_given_back(own):
    async def run():
        async with maru.aio.Client(str(own.socket), timeout_ms=60000) as client:
            os.kill(own.process.pid, signal.SIGSTOP)
            task = asyncio.ensure_future(client.alloc_batch(1 << 20, 4))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            os.kill(own.process.pid, signal.SIGCONT)
            # Behind it in the client's one thread: when this is done, that was.
            (await client.alloc(PAGE)).abort()
            with maru.Client(str(own.socket), timeout_ms=60_000) as other:
                everything = other.geometry().pool_bytes - other.geometry().control_bytes
                other.alloc_batch(1 << 20, everything // (1 << 20) - 2)

    asyncio.run(run())


def test_many_waiting_calls_share_one_thread(own):
    async def run():
        async with maru.aio.Client(str(own.socket)) as client:
            before = threading.active_count()
            buffers = await asyncio.gather(*[client.alloc(PAGE) for _ in range(200)])
            assert threading.active_count() <= before + 1
            assert len({buffer.block for buffer in buffers}) == 200

    asyncio.run(run())


def test_a_client_that_is_closed_while_it_attaches_stays_closed(marud):
    async def run():
        client = maru.aio.Client(str(marud.socket), timeout_ms=60_000)
        attaching = asyncio.ensure_future(client.attach())
        await asyncio.sleep(0)  # it has been asked for
        await client.close()
        with pytest.raises(maru.ClosedError):
            await attaching
        with pytest.raises(maru.ClosedError):
            client.sync

    asyncio.run(run())


def test_tasks_that_attach_at_once_share_one_attachment(marud, monkeypatch):
    made, attach = [], maru.Client
    monkeypatch.setattr("maru.aio._maru.Client", lambda *arguments, **options: made.append(1) or attach(*arguments, **options))

    async def run():
        client = maru.aio.Client(str(marud.socket), timeout_ms=60_000)
        await asyncio.gather(*(client.attach() for _ in range(4)))
        assert len(made) == 1 and not client.sync.is_closed
        await client.close()

    asyncio.run(run())


def test_a_child_is_told_and_does_not_wait_for_ever(marud, key):
    loop = asyncio.new_event_loop()
    client = maru.aio.Client(str(marud.socket), timeout_ms=60_000)
    loop.run_until_complete(client.attach())
    loop.run_until_complete(client.store_copy(key, b"x"))  # its thread is there
    child = os.fork()
    if child == 0:
        wrong = 1
        try:
            async def ask():
                told = 0
                for call in (lambda: client.alloc(PAGE), lambda: client.store_copy(key, b"x"), client.reattach):
                    try:
                        await asyncio.wait_for(call(), 60)
                    except maru.ForkedError:
                        told += 1
                try:
                    client.exists(key)
                except maru.ForkedError:
                    told += 1
                async with maru.aio.Client(str(marud.socket), timeout_ms=60_000) as own:
                    told += own.exists(key) and (await own.alloc(PAGE)).is_held
                await client.close()
                return 5 - told

            wrong = asyncio.run(ask())
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.run_until_complete(client.alloc(PAGE)).abort()
    loop.run_until_complete(client.close())
    loop.close()


def test_a_client_that_is_not_attached_says_so(marud):
    async def run():
        client = maru.aio.Client(str(marud.socket))
        with pytest.raises(maru.ClosedError, match="attach"):
            await client.alloc(PAGE)
        with pytest.raises(maru.ClosedError):
            client.exists("x")
        await client.attach()
        await client.attach()
        await client.close()
        await client.close()
        for call in (client.alloc(PAGE), client.attach(), asyncio.to_thread(lambda: client.exists("x"))):
            with pytest.raises(maru.ClosedError, match="closed: make another one"):
                await call

    asyncio.run(run())


def test_a_thread_reads_where_there_are_checksums(marud_program):
    async def run(own):
        async with maru.aio.Client(str(own.socket), timeout_ms=60_000) as client:
            assert client.sync.geometry().checksums
            await client.store_copy_batch(["a", "b"], [b"first", b"second"])
            one, both = await asyncio.gather(asyncio.to_thread(client.sync.retrieve, "a"),
                                             asyncio.to_thread(client.sync.retrieve_batch, ["b", "a", "c"]))
            assert bytes(one.data) == b"first" and [view and bytes(view.data) for view in both] == [b"second", b"first", None]
            own.damage(b"second")
            with pytest.raises(maru.DamagedBlockError):
                await asyncio.to_thread(client.sync.retrieve, "b")

    with Marud(marud_program, size="16MiB", more="checksums = true") as own:
        asyncio.run(run(own))
