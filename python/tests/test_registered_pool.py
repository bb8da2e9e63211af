"""The pages of a pool as CUDA would know them: a stand-in for CUDA registers memory that a real marud has given out."""
import pathlib
import subprocess
import sys
import threading
import time

import numpy
import pytest

import maru
from conftest import Marud
from cuda_registrations import MEMORY_ALLOCATION, READ_ONLY, CudaRegistrations
from maru.registered_pool import PIECE_BYTES_MAX, RegisteredPool

PATIENCE = 120  # seconds
REGION = 1 << 20


def address_of(data):
    return numpy.frombuffer(data, dtype=numpy.uint8).ctypes.data


def use(pool, data, writes):
    return pool.use(address_of(data), len(data), writes)


def use_once_known(pool, data, writes):
    """The first use asks for the registration."""
    first = use(pool, data, writes)
    if first is not None:
        return first
    pool.wait_until_idle()
    return use(pool, data, writes)


def until(is_done):
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def cuda():
    return CudaRegistrations()


@pytest.fixture
def registered(client, cuda):
    """Of the usual client. A test that fails keeps what it has used, which the end of the client would wait for."""
    made = []

    def make(cuda=cuda, **more):
        made.append(RegisteredPool(client, cuda, **more))
        return made[-1]

    yield make
    for pool in made:
        with pool._changed:
            for piece in pool._pieces.values():
                piece.users = 0
            pool._changed.notify_all()


@pytest.fixture
def foreign(client, other, key):
    """Bytes in a region where `client` has no pages."""
    other.store_copy(key, b"of another client")
    with client.retrieve(key) as view:
        yield view.data


def test_pages_that_are_filled_are_registered_for_writing_and_others_for_reading(registered, client, foreign, cuda):
    pool = registered()
    with client.alloc(8000) as buffer:
        own = use_once_known(pool, buffer.data, writes=True)
        read = use_once_known(pool, foreign, writes=False)
        assert own.parts == [(0, 8000)] and read.parts == [(0, len(foreign))]
        assert cuda.flags == [0, READ_ONLY]
        assert all(nbytes == REGION for _, nbytes, *_ in (call[1:] for call in cuda.calls))
        assert cuda.covers(address_of(foreign), len(foreign))
        for one in (own, read):
            one.release()


def test_the_first_copy_goes_another_way_and_waits_for_nothing(registered, foreign, cuda):
    is_let = threading.Event()
    register = cuda.register
    cuda.register = lambda *arguments: is_let.wait(PATIENCE) and register(*arguments)
    pool = registered()
    assert use(pool, foreign, False) is None and use(pool, foreign, False) is None
    is_let.set()
    pool.wait_until_idle()
    use(pool, foreign, False).release()
    assert len(cuda.calls) == 1, "it was asked for once"


def test_only_one_thread_which_starts_no_kernel_calls_cuda(registered, foreign, cuda):
    pool = registered()
    use_once_known(pool, foreign, False).release()
    pool.close()
    assert cuda.threads == {"maru-cuda"} and len(cuda.calls) == 2


def test_an_error_in_the_thread_ends_what_is_registered_and_lets_close_return(registered, client, foreign, cuda, caplog):
    pool = registered()
    use_once_known(pool, foreign, False).release()

    def fails(*_):
        raise MemoryError("as if the processor had no memory")

    cuda.register = fails
    with client.alloc(8000) as buffer:
        assert use(pool, buffer.data, True) is None
        until(lambda: pool._is_done)
    pool.close()
    assert not cuda.registered and "nothing more of the pool is registered" in caplog.text


def test_a_registration_that_cuda_does_not_end_serves_no_copy_and_is_ended_with_the_pool(registered, client, other, key, cuda):
    pool = registered()
    other.store_copy(key, b"x" * 5000)
    with client.retrieve(key) as view:
        use_once_known(pool, view.data, False).release()
        address = address_of(view.data)
        unregister, cuda.unregister = cuda.unregister, lambda _: 700
        assert pool.use(address, 5000, True) is None  # read-only: it would be registered anew
        pool.wait_until_idle()
        assert pool.use(address, 5000, False) is None and cuda.registered
        cuda.unregister = unregister
    pool.close()
    assert not cuda.registered


def test_no_piece_is_larger_than_a_driver_takes_and_copies_are_cut_where_it_ends(registered, client, cuda):
    assert PIECE_BYTES_MAX == 64 << 30
    pool = registered(piece_bytes_max=256 << 10)
    with client.alloc(900_000) as buffer:
        found = use_once_known(pool, buffer.data, True)
        assert sum(nbytes for _, nbytes in found.parts) == 900_000 and len(found.parts) >= 4
        assert [begin for begin, _ in found.parts] == [sum(nbytes for _, nbytes in found.parts[:i])
                                                       for i in range(len(found.parts))]
        begin = address_of(buffer.data)
        assert all(cuda.covers(begin + at, nbytes) for at, nbytes in found.parts)
        assert not cuda.covers(begin, 900_000), "a copy of all would be refused"
        assert all(call[2] == 256 << 10 for call in cuda.calls)
        found.release()


def test_a_block_in_a_usual_region_is_one_copy_wherever_it_lies(marud_program, cuda):
    with Marud(marud_program, region_bytes="2MiB") as running, maru.Client(str(running.socket), timeout_ms=60_000) as client:
        pool = RegisteredPool(client, cuda)
        buffers = client.alloc_batch(300_000, 40)
        for buffer in buffers:
            found = use_once_known(pool, buffer.data, True)
            assert found.parts == [(0, 300_000)] and cuda.covers(address_of(buffer.data), 300_000)
            found.release()
        assert len(cuda.registered) > 1
        for buffer in buffers:
            buffer.abort()


def test_pages_that_others_filled_are_registered_anew_when_no_copy_reads_them(registered, client, other, key, cuda):
    pool = registered()
    other.store_copy(key, b"x" * 5000)
    with client.retrieve(key) as view:
        reads = use_once_known(pool, view.data, False)
        address = address_of(view.data)
        # As if this client had got pages in the same region: it is mapped for reading, so CUDA refuses to write there.
        assert pool.use(address, 5000, True) is None
        until(lambda: not pool._waiting)
        assert cuda.covers(address, 5000) and len(cuda.calls) == 1, "not while a copy is under way"
        assert pool.use(address, 5000, False) is None, "no new one begins meanwhile"
        reads.release()
        pool.wait_until_idle()
        assert [call[0] for call in cuda.calls] == ["register", "unregister", "register"]
        assert cuda.calls[-1][3] == 0 and not cuda.covers(address, 5000)


def test_without_read_only_registrations_one_warning_says_so(registered, client, foreign, caplog):
    cuda = CudaRegistrations(has_read_only=False)
    pool = registered(cuda)
    assert use_once_known(pool, foreign, False) is None
    (record,) = caplog.records
    assert "error 801 as read-only (operation not supported), error 1 (invalid argument)" in record.getMessage()
    assert use_once_known(pool, foreign, False) is None and len(cuda.calls) == 2, "it is not asked for again"
    with client.alloc(100) as buffer:
        use_once_known(pool, buffer.data, True).release()
    assert len(caplog.records) == 1


def test_a_refusal_is_said_once(registered, client, foreign, caplog):
    cuda = CudaRegistrations(refusal=MEMORY_ALLOCATION)
    pool = registered(cuda)
    with client.alloc(100) as buffer:
        assert use_once_known(pool, buffer.data, True) is None and use_once_known(pool, foreign, False) is None
    (record,) = caplog.records
    assert "error 2 (an error)" in record.getMessage()
    pool.close()
    assert [call[0] for call in cuda.calls] == ["register"] * 3, "nothing was registered, so nothing is ended"


@pytest.mark.parametrize("ends", ["close", "the last view goes", "no reference is left"])
def test_registrations_end_before_the_memory_is_unmapped(marud, key, cuda, ends):
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    pool = RegisteredPool(client, cuda)
    client.store_copy(key, b"1")
    view = client.retrieve(key)
    address = address_of(view.data)
    use_once_known(pool, view.data, False).release()
    if ends == "the last view goes":
        client.close()
        assert cuda.registered, "the view still shows the memory"
    view.release()
    del view
    if ends == "close":
        client.close()
    if ends == "no reference is left":
        del client
    assert not cuda.registered and all("default:pages" in name for name in cuda.unregistered_from)
    assert len(cuda.unregistered_from) == 1
    assert pool.use(address, 1, False) is None


def test_a_pool_that_goes_is_left_when_no_copy_is_under_way(marud_program, cuda, key):
    """A buffer is no pin: marud would give the memory to others while a copy writes to it."""
    marudctl = pathlib.Path(marud_program).with_name("marudctl")
    if not marudctl.exists():
        pytest.skip("no marudctl beside this marud")
    with Marud(marud_program) as running, maru.Client(str(running.socket), timeout_ms=60_000) as client:
        pool = RegisteredPool(client, cuda)
        buffer = client.alloc(5000)
        found = use_once_known(pool, buffer.data, True)
        with subprocess.Popen([marudctl, "--socket", running.socket, "device", "remove", "default", "--yes"],
                              stdout=subprocess.DEVNULL) as removal:
            until(lambda: pool._is_closed)
            assert cuda.registered and pool.use(address_of(buffer.data), 5000, True) is None
            assert removal.poll() is None, "marud waits for this client"
            found.release()
            assert removal.wait(PATIENCE) == 0
        assert not cuda.registered and cuda.unregistered_from == ["/memfd:marud:default:pages (deleted)"]
        with pytest.raises(maru.PoolLeavesError):
            RegisteredPool(client, cuda)


def test_what_is_not_of_the_pool_is_refused(registered, client, cuda):
    pool = registered()
    with pytest.raises(ValueError, match="are not of this pool"):
        pool.use(address_of(bytearray(100)), 100, False)
    with client.alloc(100) as buffer, pytest.raises(ValueError, match="are not of this pool"):
        pool.use(address_of(buffer.data), 1 << 40, True)


LAST = """
import sys
sys.path.insert(0, sys.argv[2])
import maru, numpy
from cuda_registrations import CudaRegistrations
from maru.registered_pool import RegisteredPool
cuda, client = CudaRegistrations(), maru.Client(sys.argv[1])
pool, buffer = RegisteredPool(client, cuda), client.alloc(100)
address = numpy.frombuffer(buffer.data, dtype=numpy.uint8).ctypes.data
pool.use(address, 100, True)
pool.wait_until_idle()
pool.use(address, 100, True).release()
class Last:
    def __del__(self, say=sys.stdout.write):
        say(f"{len(cuda.registered)} {cuda.unregistered_from}")
last = Last()
"""


def test_registrations_end_before_the_process_does(marud):
    run = subprocess.run([sys.executable, "-c", LAST, marud.socket, str(pathlib.Path(__file__).parent)], capture_output=True,
                         text=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout) == (0, "0 ['/memfd:marud:default:pages (deleted)']"), run.stderr


def test_the_library_says_once_when_the_memory_goes(marud):
    client, said = maru.Client(str(marud.socket), timeout_ms=60_000), []
    shape = client.geometry()
    base = client._before_unmap(lambda: said.append("replaced"))
    assert client._before_unmap(lambda: said.append("called")) == base
    with client.alloc(100) as buffer:
        offset = address_of(buffer.data) - base
        assert offset % shape.page_bytes == 0 and 0 <= offset < shape.pages * shape.page_bytes
    client.close()
    assert said == ["called"]
    client = maru.Client(str(marud.socket), timeout_ms=60_000)
    client._before_unmap(lambda: said.append("taken away"))
    client._before_unmap(None)
    client.close()
    assert said == ["called"]
    with pytest.raises(maru.ClosedError):
        client._before_unmap(None)
