"""What errors advise: the same number asks for something else of another call."""
import os
import resource
import socket

import pytest

import maru
from conftest import PAGE, Marud
from maru.errors import error_for
from test_handler import CHUNK, config

LIMITED = '[[limit]]\nuser = "root"\n'
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="the limit is root's")


@only_root
def test_a_user_with_all_its_connections_is_told_so(marud_program):
    with Marud(marud_program, more=LIMITED + "connections = 1\n") as running:
        with maru.Client(str(running.socket), timeout_ms=60_000):
            with pytest.raises(maru.QuotaError, match="as many connections") as raised:
                maru.Client(str(running.socket), timeout_ms=60_000)
            assert "tenant" not in str(raised.value)


@only_root
def test_a_user_with_all_its_memory_is_told_so(marud_program):
    with Marud(marud_program, more=LIMITED + "regions = 1\n") as running:
        with maru.Client(str(running.socket), timeout_ms=60_000) as client:
            held = []
            for call in (lambda: held.append(client.alloc(PAGE)), lambda: held.extend(client.alloc_batch(PAGE, 64)),
                         lambda: client.store_copy("k", b"x")):
                with pytest.raises(maru.QuotaError, match="this user is at its limit of memory"):
                    while True:
                        call()
        with maru.MaruHandler(config(running)) as handler:
            handles = []
            with pytest.raises(ValueError, match="this user is at its limit of memory") as exhausted:
                while True:
                    handles.append(handler.alloc(CHUNK))
            assert isinstance(exhausted.value, maru.PoolExhaustedError) and handler.allocator.num_allocated == len(handles)


def test_a_tenant_that_the_pool_has_no_place_for_is_told_so(marud_program):
    with Marud(marud_program, more="tenants_max = 1\ndefault_hard_limit = 65536\n") as running:
        with maru.Client(str(running.socket), timeout_ms=60_000) as client:
            first, second = client.tenant("first"), client.tenant("second")
            client.store_copy(b"k", b"x", tenant=first)
            with pytest.raises(maru.TenantPlaceError, match="no place to count its bytes"):
                client.store_copy(b"k", b"x", tenant=second)


@pytest.mark.parametrize("path, error, advice", [
    ("/etc/passwd/marud.sock", maru.NotFoundError, "no directory"),
    ("/tmp/" + "x" * 200, maru.InvalidArgumentError, "107 bytes"),
    ("", maru.InvalidArgumentError, "path of a socket is empty")])
def test_a_path_that_cannot_be_a_socket(path, error, advice):
    with pytest.raises(error, match=advice):
        maru.Client(path)


@pytest.mark.parametrize("name", ["x" * 64, "", "a/b"])
def test_a_name_that_cannot_be_a_pool(marud, name):
    with pytest.raises(maru.InvalidArgumentError, match="1 to 63 letters, digits, -, _ and [.];"):
        maru.Client(str(marud.socket), name)


def test_a_socket_of_another_program(tmp_path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        path = str(tmp_path / f"{kind}.sock")
        with socket.socket(socket.AF_UNIX, kind) as other:
            other.bind(path)
            with pytest.raises(maru.DaemonUnreachableError):
                maru.Client(path, timeout_ms=1000)


def test_a_marud_that_hangs_up(tmp_path):
    import threading
    path = str(tmp_path / "other.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(path)
        other.listen()

        def hang_up():
            other.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(maru.DaemonUnreachableError, match="closed the connection"):
            maru.Client(path, timeout_ms=60_000)
        thread.join(60)


def test_a_process_without_descriptors(marud):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    os.close(highest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
    try:
        with pytest.raises(maru.TryAgainError, match="limit of open files"):
            maru.Client(str(marud.socket), timeout_ms=60_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_keys_than_a_batch_has(client):
    keys = ["k"] * ((1 << 20) + 1)
    for call in (client.exists_batch, client.retrieve_batch, client.match_prefix, client.delete_batch):
        with pytest.raises(maru.InvalidArgumentError, match="at most 2"):
            call(keys)


@pytest.mark.parametrize("call", ["maru_attach", "maru_reattach"])
def test_a_pool_that_is_fenced_is_no_damaged_block(call):
    import errno
    refused = error_for(errno.EIO, call)
    assert isinstance(refused, maru.PoolLeavesError) and "fenced" in str(refused) and refused.errno == errno.EIO


@pytest.mark.parametrize("call, number, error, advice", [
    ("maru_prefetch", "ENOENT", maru.NotFoundError, "start maru-tierd"),
    ("maru_prefetch", "ECONNREFUSED", maru.DaemonUnreachableError, "no maru-tierd answers"),
    ("maru_prefetch", "ECONNRESET", maru.DaemonUnreachableError, "no maru-tierd answers"),
    ("maru_prefetch", "EMSGSIZE", maru.TooLargeError, "1 MiB"),
    ("maru_prefetch_wait", "ECONNRESET", maru.DaemonUnreachableError, "maru-tierd has gone"),
    ("maru_prefetch_wait", "ETIMEDOUT", maru.DaemonTimeoutError, "has not ended yet"),
    ("maru_follow_open", "ENOENT", maru.NotFoundError, "no such pool or socket"),
    ("maru_follow_open", "EDQUOT", maru.QuotaError, "as many connections"),
    ("maru_follow_next", "EIO", maru.PoolLeavesError, "fenced"),
    ("maru_follow_next", "EAGAIN", maru.TryAgainError, "faster than this follower")])
def test_followers_and_tickets_have_advice_of_their_own(call, number, error, advice):
    import errno
    refused = error_for(getattr(errno, number), call)
    assert type(refused) is error and advice in str(refused)
    assert "tenant" not in str(refused) and "match" not in str(refused)
