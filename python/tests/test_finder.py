"""What MaruHandler inherits from the extension: exists, batch_exists and retrieve."""
import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import weakref

import pytest

import maru
from test_handler import config, handler, put, read

CALLS = {"exists": lambda key: key, "batch_exists": lambda key: [key, key], "retrieve": lambda key: key}
ABSENT = {"exists": False, "batch_exists": [False, False], "retrieve": None}
PATIENCE = 120  # seconds


@pytest.fixture
def passing(marud_program):
    """A handler that takes what it cannot read for absent, as LMCache's, in a marud of its own with checksums."""
    from with_marud import Marud
    with Marud(marud_program, more="checksums = true") as running, maru.MaruHandler(config(running)) as its:
        its._passes_over_unreadable = True
        its.running = running
        yield its


def test_a_value_that_is_damaged_is_absent_to_one_who_passes_over(passing, key, caplog):
    payload = os.urandom(2000)
    put(passing, key, payload)
    passing.running.damage(payload)
    assert passing.exists(key) and passing.retrieve(key) is None and not passing.exists(key)
    said, = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert said.startswith("Taken for absent: ") and "checksum" in said


class Interrupted:
    def __iter__(self):
        return iter("abc")

    def __len__(self):
        raise KeyboardInterrupt


def test_a_pool_that_leaves_holds_nothing_to_one_who_passes_over(passing, key, marud_program, caplog):
    put(passing, key, b"x")
    held = passing.retrieve(key)  # marud waits for its reader
    marudctl = pathlib.Path(marud_program).with_name("marudctl")
    removing = subprocess.Popen([marudctl, "--socket", str(passing.running.socket), "device", "remove", "default",
                                 "--deadline", "300", "--yes"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while passing.exists(key):
            assert time.monotonic() < deadline and removing.poll() is None
            time.sleep(0.01)
        for name, given in CALLS.items():
            assert getattr(passing, name)(given(key)) == ABSENT[name]
        assert passing.batch_exists({key: 0}.keys()) == [False]
        with pytest.raises(maru.PoolLeavesError):  # nobody knows how many they were
            passing.batch_exists(iter([key, key]))
        with pytest.raises(KeyboardInterrupt):  # what is raised meanwhile is not lost
            passing.batch_exists(Interrupted())
        said, = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
        assert "everything from now on" in said
        passing._passes_over_unreadable = False
        for name, given in CALLS.items():
            with pytest.raises(maru.PoolLeavesError):
                getattr(passing, name)(given(key))
        del held
        assert removing.wait(PATIENCE) == 0
    finally:
        removing.kill()
        removing.wait()


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_state_of_the_pool_is_raised_to_one_who_passes_over_too(passing, name, key):
    with pytest.raises(maru.InvalidArgumentError, match="4097 bytes"):
        getattr(passing, name)(CALLS[name]("x" * 4097))
    with pytest.raises(maru.InvalidArgumentError):
        getattr(passing, name)(CALLS[name](5.0))


def damaged(running, key, decide):
    """A handler that asks decide(error) about a value under this key, which is damaged."""
    class Deciding(maru.MaruHandler):
        def _passes_over(self, error):
            return decide(error)

    its, payload = Deciding(config(running)), os.urandom(2000)
    assert its.connect() and put(its, key, payload)
    running.damage(payload)
    return its


@pytest.mark.parametrize("name", CALLS)
def test_who_decides_is_asked_about_unreadable_values_alone(passing, name, key):
    asked = []
    its = damaged(passing.running, key, lambda error: asked.append(error) or True)
    for wrong in (5.0, "x" * 4097):
        with pytest.raises(maru.InvalidArgumentError):
            getattr(its, name)(CALLS[name](wrong))
    its._client.close()
    with pytest.raises(maru.ClosedError):
        getattr(its, name)(CALLS[name](key))
    assert asked == []


@pytest.mark.parametrize("answer", [[], "", 0, None])
def test_an_answer_that_is_as_good_as_no(passing, key, answer):
    with pytest.raises(maru.DamagedBlockError):
        damaged(passing.running, key, lambda error: answer).retrieve(key)


@pytest.mark.parametrize("answer", [[0], "x", 1, object()])
def test_an_answer_that_is_as_good_as_yes(passing, key, answer):
    assert damaged(passing.running, key, lambda error: answer).retrieve(key) is None


def test_who_decides_handles_the_error_and_may_raise(passing, key):
    class Undecided:
        def __bool__(self):
            raise KeyError("undecided")

    def decide(error):
        assert sys.exc_info()[1] is error
        return Undecided()

    its = damaged(passing.running, key, decide)
    with pytest.raises(KeyError, match="undecided") as raised:
        its.retrieve(key)
    assert isinstance(raised.value.__context__, maru.DamagedBlockError)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_named_or_counted(handler, name, key):
    parameter = "keys" if name == "batch_exists" else "key"
    call, given = getattr(handler, name), CALLS[name](key)
    assert call(**{parameter: given}) == call(given) == ABSENT[name]
    for wrong in (lambda: call(), lambda: call(given, given), lambda: call(given, tenant=None), lambda: call(other=given),
                  lambda: call(given, **{parameter: given})):
        with pytest.raises(TypeError, match=rf"^{name}\(\) "):
            wrong()


@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_was_never_made_is_refused(name, key):
    with pytest.raises(AttributeError, match="_client"):
        getattr(maru.MaruHandler.__new__(maru.MaruHandler), name)(CALLS[name](key))
    with pytest.raises(TypeError):
        getattr(maru.MaruHandler, name)(object(), CALLS[name](key))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_client_is_refused(marud, name, key):
    its = maru.MaruHandler(config(marud))
    its._client = object()
    with pytest.raises(TypeError, match="_client is a Client, not object"):
        getattr(its, name)(CALLS[name](key))
    its._client, its._refuse = None, lambda: None
    with pytest.raises(TypeError, match="not NoneType"):
        getattr(its, name)(CALLS[name](key))
    its._client = maru.Client.__new__(maru.Client)
    with pytest.raises(maru.ClosedError):
        getattr(its, name)(CALLS[name](key))


def test_nothing_is_kept_of_a_call(passing, key):
    def ask(some):
        for name, given in CALLS.items():
            with contextlib.suppress(maru.InvalidArgumentError):
                getattr(passing, name)(given(some))

    def counts():
        gc.collect()
        return [sys.getrefcount(kept) for kept in (passing._client, passing._retrieved, wrong, key)]

    wrong = "x" * 4097
    put(passing, key, os.urandom(2000))
    before = counts()
    for _ in range(20):
        ask(key)
        ask(wrong)
    assert counts() == before


def test_nothing_is_kept_of_an_error_that_is_passed_over(passing, key):
    errors = []
    its = damaged(passing.running, key, lambda error: errors.append(weakref.ref(error)) or True)
    assert its.retrieve(key) is None
    gc.collect()
    assert [error() for error in errors] == [None]


def test_a_class_made_of_the_handler_may_ask_in_its_own_way(marud, key):
    class Noting(maru.MaruHandler):
        def exists(self, key):
            asked.append(key)
            return super().exists(key)

    asked = []
    with Noting(config(marud)) as its:
        assert its.exists(key) is False and asked == [key]


def test_what_is_asked_while_others_close_and_connect(marud, key):
    """Each call has its answer from one attachment, or is refused."""
    its = maru.MaruHandler(config(marud))
    assert its.connect()
    keys = [f"{key} {i}" for i in range(200)]
    for name in keys[::2]:
        put(its, name, name.encode())
    ends, wrong = threading.Event(), []

    def ask():
        answers = 0
        while not ends.is_set() or answers == 0:
            try:
                if its.batch_exists(keys) != [True, False] * 100 or its.exists(keys[1]) or not its.exists(keys[0]):
                    wrong.append("exists")
                if read(its, keys[2]) != keys[2].encode():
                    wrong.append("retrieve")
                answers += 1
            except (maru.NotConnectedError, maru.ClosedError):
                pass
            except Exception as error:
                wrong.append(repr(error))
                return

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        its.close()
        assert its.connect()
    ends.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    its.close()
