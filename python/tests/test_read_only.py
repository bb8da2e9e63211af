"""Clients that only find and read."""
import asyncio
import errno
import os
import pathlib

import pytest

import maru
import maru.aio
from conftest import PAGE, Marud

READER = 65534


def attach(marud, **more):
    return maru.Client(str(marud.socket), timeout_ms=60_000, **more)


def test_a_reader_finds_and_reads(marud, client, digests):
    client.store_chain(digests[:3], client.alloc_batch(PAGE, 3))
    client.store_copy(b"k", b"text")
    with attach(marud, read_only=True) as reader:
        assert reader.exists(b"k") and bytes(reader.retrieve(b"k").data) == b"text"
        assert reader.exists_batch(digests[:4]).tolist() == [True] * 3 + [False]
        with reader.match_prefix(digests) as match:
            assert [view.nbytes for view in match.resolve(digests)] == [PAGE] * 3
        with reader.pin(b"k"):
            assert reader.statistics().pins == 1


def test_what_stores_or_deletes_is_refused(marud, client, key):
    client.store_copy(key, b"text")
    buffer = client.alloc(PAGE)
    with attach(marud, read_only=True) as reader:
        for call in (lambda: reader.alloc(PAGE), lambda: reader.alloc_batch(PAGE, 2), lambda: reader.store_copy("new", b"x"),
                     lambda: reader.store("new", buffer), lambda: reader.delete(key), lambda: reader.delete_batch([key]),
                     lambda: reader.delete_tree(key)):
            with pytest.raises(maru.ReadOnlyError, match="read only: make one without read_only") as raised:
                call()
            assert raised.value.errno == errno.EROFS
    assert client.exists(key) and buffer.is_held and not client.exists("new")


def test_a_handler_and_a_client_of_asyncio_may_be_readers(marud, client, key):
    client.store_copy(key, b"text")
    with maru.MaruHandler(maru.MaruConfig(server_url=str(marud.socket), read_only=True, timeout_ms=60_000)) as handler:
        assert bytes(handler.retrieve(key).view) == b"text" and handler.pin(key)
        for call in (lambda: handler.alloc(1), lambda: handler.delete(key + " absent")):
            with pytest.raises(maru.ReadOnlyError):
                call()

    async def use():
        async with maru.aio.Client(str(marud.socket), timeout_ms=60_000, read_only=True) as reader:
            assert bytes(reader.retrieve(key).data) == b"text"
            with pytest.raises(maru.ReadOnlyError):
                await reader.alloc(PAGE)

    asyncio.run(use())


def test_a_reader_that_is_well_says_so(marud_program, caplog):
    with Marud(marud_program) as running:
        config = maru.MaruConfig(server_url=str(running.socket), read_only=True, timeout_ms=60_000)
        with maru.MaruHandler(config) as handler:
            assert handler.healthcheck()
            others = []
            with pytest.raises(maru.LanesExhaustedError):
                while True:
                    others.append(attach(running))
            assert handler.healthcheck() and not caplog.text
            for other in others:
                other.close()
            running.process.kill()
            running.process.wait()
            assert handler.healthcheck() is False and "Not healthy" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_only_read_reads(marud_program):
    with Marud(marud_program, more=f"readers = [{READER}]") as running, attach(running) as client:
        pathlib.Path(running.directory.name).chmod(0o755)
        client.store_copy(b"k", b"text")
        child = os.fork()
        if child == 0:
            wrong = 1
            try:
                os.setgroups([])
                os.setresgid(READER, READER, READER)
                os.setresuid(READER, READER, READER)
                with attach(running, read_only=True) as reader:
                    wrong = bytes(reader.retrieve(b"k").data) != b"text"
                try:
                    attach(running)
                    wrong += 2
                except maru.AccessDeniedError:
                    pass
            finally:
                os._exit(wrong)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
