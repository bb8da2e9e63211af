"""What no program should do, and some do: it raises what is named, and never ends the interpreter."""
import ctypes
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy
import pytest

import maru
from conftest import PAGE
from maru import tokens
from test_handler import handler

HALF = "\ud800"  # of a surrogate pair: a str, and no text


def test_bytes_are_advised_only_where_they_are_taken(client):
    with pytest.raises(maru.InvalidArgumentError, match="A key is a str without surrogates, or bytes; "):
        client.exists(HALF)
    for call in (lambda: client.exists("k", HALF), lambda: maru.Client(HALF), lambda: maru.Client(pool=HALF)):
        with pytest.raises(maru.InvalidArgumentError, match="is a str without surrogates; "):
            call()


def run(script, *arguments):
    """In a process of its own, which may crash."""
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script), *map(str, arguments)],
                          capture_output=True, text=True, timeout=120)


def test_text_that_has_no_utf8_is_no_key(client):
    calls = [
        lambda: client.exists(HALF), lambda: client.retrieve(HALF), lambda: client.pin(HALF), lambda: client.delete(HALF),
        lambda: client.store_copy(HALF, b"x"), lambda: client.exists_batch(["k", HALF]), lambda: client.tenant(HALF),
        lambda: client.retrieve_batch(["k" * 100] * 300 + [HALF]), lambda: client.match_prefix([HALF]),
        lambda: client.exists("k", HALF), lambda: client.store_copy("k", b"x", parent=HALF),
    ]
    for call in calls:
        with pytest.raises(maru.InvalidArgumentError, match="surrogates"):
            call()


def test_an_array_that_is_no_digest_is_shown_as_it_is(client):
    for given, found in ((numpy.zeros(16), "is 16 items of format d"),
                         (numpy.zeros((4, 4), "u1"), "is 4 x 4 items of format B"),
                         (numpy.zeros(8, "u1"), "is 8 items of format B"), (numpy.zeros((), "u1"), "is one item of format B")):
        with pytest.raises(maru.InvalidArgumentError, match=f"holds 16 or 32 uint8: a digest. This one {found}"):
            client.exists(given)
    for given, found in ((numpy.zeros((3, 8), "u1"), "is 3 x 8 items of format B"), (numpy.zeros((3, 16), "i2"), "of format h"),
                         (numpy.zeros(16, "u1"), "is 16 items of format B")):
        with pytest.raises(maru.InvalidArgumentError, match=f"is n x 16 or n x 32 uint8: digests. This one .*{found}"):
            client.exists_batch(given)


def test_too_many_arguments_are_counted(client):
    with pytest.raises(TypeError, match=r"exists\(\) takes at most 1 argument, 2 were given"):
        maru.MaruHandler().exists("k", "l")
    with pytest.raises(TypeError, match=r"exists\(\) takes at most 2 arguments, 3 were given"):
        client.exists("k", None, None)


def test_a_truth_is_no_tenant_and_no_parent(client):
    for call in (lambda: client.exists("k", True), lambda: client.store_copy("t", b"x", tenant=False),
                 lambda: client.store_copy("t", b"x", parent=False), lambda: client.store_copy("t", b"x", parent=True)):
        with pytest.raises(maru.InvalidArgumentError, match="bool"):
            call()
    assert not client.exists("t")


def test_a_view_of_several_dimensions_is_no_sequence(marud, client):
    view = memoryview(bytes(16)).cast("B", (4, 4))
    handler = maru.MaruHandler(maru.MaruConfig(server_url=str(marud.socket)))
    assert handler.connect()
    for call in (client.unpin_batch, lambda some: client.store_batch(["k"] * 4, some), handler.batch_pin, handler.batch_unpin,
                 lambda some: handler.batch_store(["k"] * 4, some)):
        with pytest.raises(maru.InvalidArgumentError, match="memoryview"):
            call(view)
    handler.close()


def test_what_an_iterable_raises_is_its_own(client):
    class Interrupted:
        def __init__(self, error):
            self.error = error

        def __iter__(self):
            return self

        def __next__(self):
            raise self.error

    for error in (KeyboardInterrupt(), SystemExit(3), MemoryError(), TypeError("of the iterable"), KeyError("k")):
        for call in (client.exists_batch, client.retrieve_batch, client.delete_batch, client.match_prefix,
                     lambda keys: client.store_chain(["k"], keys)):
            with pytest.raises(type(error)) as raised:
                call(Interrupted(error))
            assert raised.value is error
    for call in (client.exists_batch, lambda keys: client.store_chain(["k"], keys)):
        for wrong in (None, 5):
            with pytest.raises(maru.InvalidArgumentError, match="sequence of"):
                call(wrong)


def test_a_buffer_that_does_not_fit_is_refused(client):
    text = memoryview(b"x" * 32)[::2]
    with pytest.raises(maru.InvalidArgumentError, match="without gaps"):
        client.store_copy("k", text)
    with pytest.raises(maru.InvalidArgumentError, match="without gaps"):
        client.exists_batch(["k"], out=b"x")


def test_what_is_no_buffer_is_refused(client, key):
    client.store_copy(key, b"x")
    for wrong in (None, b"bytes", 5, client.retrieve(key), bytearray(4)):
        with pytest.raises(maru.InvalidArgumentError, match="A buffer of alloc"):
            client.store("not " + key, wrong)
    assert not client.exists("not " + key)


def test_what_is_no_truth_is_refused(marud, client, key):
    """A text is true, whatever it says, and None is no answer."""
    buffer = client.alloc(3)
    for wrong in ("no", None, 1, 0, 1.0, []):
        for call in (lambda: client.store(key, buffer, keep_views=wrong),
                     lambda: client.store_chain([key], [buffer], keep_views=wrong),
                     lambda: maru.Client(str(marud.socket), read_only=wrong),
                     lambda: maru.Client(str(marud.socket), session_thread=wrong),
                     lambda: maru.Client(str(marud.socket), first_fit=wrong)):
            with pytest.raises(maru.InvalidArgumentError, match="is True or False, not"):
                call()
    assert buffer.is_held and not client.exists(key)
    assert client.store(key, buffer, keep_views=numpy.bool_(False)).is_new
    with maru.Client(str(marud.socket), timeout_ms=60_000, read_only=numpy.bool_(True)) as reader:
        with pytest.raises(maru.ReadOnlyError):
            reader.alloc(1)


@pytest.mark.parametrize("arguments", [{"socket_path": "{socket}\0.old"},
                                       {"socket_path": "{socket}", "pool": "default\0other"}])
def test_a_null_character_cuts_nothing(marud, arguments):
    with pytest.raises(maru.InvalidArgumentError, match="null character"):
        maru.Client(**{name: text.format(socket=marud.socket) for name, text in arguments.items()})


def test_the_signatures_are_those_of_methods():
    import inspect
    assert list(inspect.signature(maru.Client.exists).parameters) == ["self", "key", "tenant"]
    assert list(inspect.signature(maru.Client.exists_batch).parameters) == ["self", "keys", "tenant", "out"]
    assert list(inspect.signature(maru.Pin.release).parameters) == ["self"]


def test_an_array_is_no_number(marud, client, key, digests):
    stored = client.store_copy_batch(digests[:2], [b"a", b"b"])
    array = numpy.array([8])
    for call in (lambda: client.alloc(array), lambda: client.alloc_batch(8, array), lambda: client.alloc_batch(array, 8),
                 lambda: client.store_copy(key, b"x", ttl_ms=array), lambda: client.pin_block(stored.blocks),
                 lambda: maru.Client(str(marud.socket), timeout_ms=array)):
        with pytest.raises(maru.InvalidArgumentError, match="is a whole number, not numpy.ndarray"):
            call()


def test_what_a_number_raises_is_its_own(client):
    class Interrupted:
        def __init__(self, error):
            self.error = error

        def __index__(self):
            raise self.error

    class Sized(Interrupted):
        def __len__(self):
            return 1

    for error in (KeyboardInterrupt(), MemoryError(), TypeError("of the number"), KeyError("k")):
        for kind in (Interrupted, Sized) if not isinstance(error, TypeError) else (Interrupted,):
            with pytest.raises(type(error)) as raised:
                client.alloc(kind(error))
            assert raised.value is error


def test_a_number_is_no_batch(marud):
    with maru.MaruHandler(maru.MaruConfig(server_url=str(marud.socket))) as handler:
        for wrong in (numpy.uint8(3), numpy.float32(1), numpy.array("k")):
            for call in (handler.batch_pin, handler.batch_unpin, lambda keys: handler.batch_store(keys, []),
                         lambda handles: handler.batch_store([], handles)):
                with pytest.raises(maru.InvalidArgumentError, match="A batch wants a sequence of"):
                    call(wrong)


def test_a_number_is_no_digest():
    for wrong in (16, 32, True, "x" * 16, numpy.int64(16), numpy.uint8(32), None, 1.5, object(), [None], [300] * 16):
        with pytest.raises(maru.InvalidArgumentError):
            maru.Digest(wrong)
    same = bytes(range(16))
    assert maru.Digest(numpy.arange(16, dtype=numpy.uint8)) == maru.Digest(bytearray(same)) == maru.Digest(same)


def test_a_seed_that_has_no_utf8_is_refused():
    for call in (lambda: tokens.root("sha256_cbor", HALF), lambda: tokens.vllm([1] * 16, parent=b"p", lora_name=HALF),
                 lambda: tokens.vllm([1] * 16, parent=b"p", cache_salt=HALF)):
        with pytest.raises(maru.InvalidArgumentError, match="text of at most 255 bytes"):
            call()


def test_a_url_and_an_algorithm_are_texts():
    for wrong in (3, None, b"/run", ["/run"], numpy.zeros(2)):
        with pytest.raises(maru.InvalidArgumentError):
            maru.MaruConfig(server_url=wrong)
        with pytest.raises(maru.InvalidArgumentError):
            tokens.root(wrong)
    for wrong in (3, numpy.array(["k", "kk"])):
        with pytest.raises(maru.InvalidArgumentError, match="no algorithm"):
            tokens.lmcache_engine(range(16), 4, parent=0, algorithm=wrong)


@pytest.mark.parametrize("kind", ["Client", "Buffer", "Match"])
def test_an_object_whose_init_was_not_called_is_a_closed_one(kind):
    ended = run("""
        import sys
        import maru
        made = getattr(maru, sys.argv[1]).__new__(getattr(maru, sys.argv[1]))
        for name in dir(made):
            if name.startswith("__"):
                continue
            for arguments in ((), ("k",), ("k", "k"), (["k"],), (["k"], None, None), (1,), (1, 1)):
                try:
                    found = getattr(made, name)
                    if callable(found):
                        found(*arguments)
                except (TypeError, maru.MaruError):
                    pass
        with made:
            pass
        del made
        print("lives")
    """, kind)
    assert (ended.returncode, ended.stdout) == (0, "lives\n"), ended.stderr


def test_nobody_writes_through_what_a_memoryview_of_a_stored_buffer_was_made_of(client, other, key):
    for keep_views in (False, True):
        buffer = client.alloc(PAGE)
        buffer.data[:] = b"a" * PAGE
        pages = buffer.data.obj
        assert client.store(f"{key} {keep_views}", buffer, keep_views=keep_views).is_new
        with pytest.raises(maru.ClosedError):
            memoryview(pages)
        assert bytes(other.retrieve(f"{key} {keep_views}").data) == b"a" * PAGE


def test_threads_may_share_what_is_being_stored(client, key):
    """Each call does what it says, or says that another was first."""
    for turn in range(50):
        buffer, view, match, start = client.alloc(PAGE), client.retrieve(key), client.match_prefix([key]), threading.Barrier(4)
        wrong = []

        def use(first, buffer=buffer, view=view, match=match, start=start, turn=turn, wrong=wrong):
            calls = [lambda: memoryview(buffer.data.obj), buffer.abort, lambda: client.store(f"{key} {turn}", buffer),
                     lambda: client.store(f"{key} {turn}", buffer, keep_views=True), lambda: match.resolve([key]),
                     match.release, lambda: view and view.data, lambda: view and view.release()]
            start.wait()
            for call in calls[first:] + calls[:first]:
                try:
                    call()
                except (maru.ClosedError, maru.ViewsHeldError):
                    pass
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=use, args=(2 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        del use, buffer, view, match, threads
    assert client.statistics().pins == 0


@pytest.mark.parametrize("first", ["import maru", ""], ids=["after the main one", "first"])
def test_a_subinterpreter_is_refused(first):
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    pytest.importorskip(name)
    inner = "try:\n  import maru\nexcept ImportError as error:\n  print(error, flush=True)"
    ended = run("""
        import importlib
        import sys
        interpreters = importlib.import_module(sys.argv[3])
        exec(sys.argv[1])
        other = interpreters.create()
        interpreters.run_string(other, sys.argv[2])
        interpreters.destroy(other)
        import maru
        try:
            maru.Digest(b"short")
        except maru.InvalidArgumentError:
            print("works", flush=True)
    """, first, inner, name)
    assert ended.returncode == 0, ended.stderr
    assert "main interpreter alone" in ended.stdout and ended.stdout.endswith("works\n"), ended.stdout


def test_daemon_threads_in_calls_do_not_end_the_process_badly(marud):
    """Python ends a daemon thread where it asks for the GIL again, while the interpreter ends."""
    for _ in range(5):
        ended = run("""
            import sys, threading, time
            import maru
            client = maru.Client(sys.argv[1], timeout_ms=60_000)
            keys = ["k" * 30] * 5000
            def work():
                while True:
                    client.exists_batch(keys)
                    client.alloc(1)
                    client.statistics()
            for _ in range(4):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.2)
        """, marud.socket)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("call", [
    "client.exists_batch(Fresh())",
    "client.match_prefix(Fresh())",
    "client.alloc(Number())",
    "client.alloc_batch(1, Number())",
    "client.store_copy('k', b'x', ttl_ms=Number())",
    "client.store_chain(['k'], Fresh())",
    "client.pin_block(1 << 63)",
    "maru.Client(Path())",
])
def test_a_daemon_thread_is_ended_inside_a_call(marud, call):
    """It is in Python code that a call of ours calls, and asks for the GIL when the interpreter has begun to end: the stack
    that Python may unwind then has our frames in it."""
    ended = run("""
        import _thread, sys, threading, time
        import maru
        client = maru.Client(sys.argv[1], timeout_ms=60_000)
        inside, ending = _thread.allocate_lock(), _thread.allocate_lock()
        inside.acquire()
        ending.acquire()
        def wait(inside=inside, ending=ending):
            inside.release()
            ending.acquire()
            return 1
        class Fresh:
            def __iter__(self):
                yield wait()
        class Number:
            def __index__(self):
                return wait()
        class Path:
            def __fspath__(self):
                return wait()
        maru.errors.error_for = lambda status, call: wait()
        call = eval("lambda: " + sys.argv[2])
        threading.Thread(target=call, daemon=True).start()
        inside.acquire()
        class Late:
            def __del__(self, ending=ending, sleep=time.sleep, print=print):
                ending.release()
                sleep(0.3)  # for the thread to be ended in
                print("ended", flush=True)
        sys.modules["late"] = Late()
    """, marud.socket, call)
    assert ended.returncode == 0 and ended.stdout == "ended\n", (ended.returncode, ended.stdout, ended.stderr)


def test_batches_fit_the_smallest_stack_of_a_thread(marud):
    ended = run("""
        import sys, threading
        import maru
        client = maru.Client(sys.argv[1], timeout_ms=60_000)
        keys = ["small stack %d" % i for i in range(256)]
        client.store_copy(keys[0], b"x")
        def ask():
            found = client.exists_batch(keys)
            views = client.retrieve_batch(keys)
            gone = client.delete_batch(keys)
            print(sum(found), sum(view is not None for view in views), sum(gone), flush=True)
        threading.stack_size(32768)
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    """, marud.socket)
    assert ended.returncode == 0 and ended.stdout == "1 1 1\n", (ended.returncode, ended.stdout, ended.stderr)


def test_errors_are_named_while_the_interpreter_ends(marud):
    ended = run("""
        import sys
        import maru
        client = maru.Client(sys.argv[1], timeout_ms=60_000)
        refused = maru.InvalidArgumentError
        try:
            client.exists(3)
        except refused:
            pass
        class Late:
            def __del__(self, client=client, refused=refused, print=print):
                try:
                    client.exists(3)
                except refused:
                    print("named", flush=True)
        sys.modules["late"] = Late()
    """, marud.socket)
    assert ended.returncode == 0 and ended.stdout == "named\n", (ended.stdout, ended.stderr)


def test_the_class_of_an_object_stays(client, key):
    client.store_copy(key, b"text")
    kinds = [maru.Pin, maru.View, maru.Client, maru.Buffer, maru.Match, maru.MemoryInfo]
    objects = [client.pin(key), client.retrieve(key), client, client.alloc(10),
               client.match_prefix([key])]
    for thing in objects:
        for kind in kinds:
            if kind is type(thing):
                continue
            with pytest.raises(TypeError):
                thing.__class__ = kind
    for kind in kinds:
        with pytest.raises(TypeError):
            kind.block = 1


def test_a_memoryview_that_was_ended_is_made_anew(client, key):
    buffer = client.alloc(4)
    with buffer.data as data:
        data[:] = b"text"
    with pytest.raises(ValueError):
        data[0]
    assert bytes(buffer.data) == b"text"
    # Some libraries write through a memoryview that they refer to, ended or not.
    with pytest.raises(maru.ViewsHeldError):
        client.store(key, buffer)
    del data
    client.store(key, buffer)
    view = client.retrieve(key)
    with view.data as data:
        assert bytes(data) == b"text"
    assert bytes(view.data) == b"text"
    view.release()
    with pytest.raises(maru.ClosedError):
        view.data


def test_a_view_that_is_released_while_its_memoryview_goes_is_a_closed_one(client, key):
    client.store_copy(key, b"text")
    view = client.retrieve(key)
    data = view.data
    data.release()
    watch = weakref.ref(data, lambda _: view.release())
    del data
    with pytest.raises(maru.ClosedError):
        view.data
    assert watch() is None


def test_a_number_of_any_length_is_refused_by_name(handler):
    huge = 10**5000  # Python shows 4300 digits
    for call in (lambda: handler.alloc(huge), lambda: handler.alloc(-huge), lambda: tokens.lmcache([1] * 10, huge),
                 lambda: tokens.dynamo([1], 1, salt=huge), lambda: tokens.dynamo([1], huge),
                 *(lambda name=name, sign=sign: maru.MaruConfig(**{name: sign * huge}) for sign in (1, -1)
                   for name in ("timeout_ms", "pool_size", "chunk_size_bytes", "expand_size")
                   if (name, sign) not in (("pool_size", 1), ("expand_size", 1)))):
        with pytest.raises(maru.InvalidArgumentError, match="of [0-9]+ bits"):
            call()


def test_a_class_is_no_batch(handler):
    for call in (lambda: handler.batch_pin(list), lambda: handler.batch_store(list, [])):
        with pytest.raises(maru.InvalidArgumentError, match="not type"):
            call()


def test_objects_are_not_stored(client, key):
    """What a buffer of them holds are their addresses in this process."""
    one = numpy.array([object(), None])
    named = numpy.zeros(3, [("Offset", "u4"), ("b", "u1")])
    for call in (lambda: client.store_copy(key, one), lambda: client.store_copy(key, memoryview(one)),
                 lambda: client.store_copy_batch([key], [one]), lambda: client.store_copy_batch([key], one[None]),
                 lambda: client.store_copy(key, numpy.zeros(3, [("a", "u4"), ("b", object)])),
                 lambda: client.store_copy(key, numpy.zeros(3, [("date", "M8[s]"), ("b", object)])),
                 lambda: client.store_copy_batch([key], numpy.zeros((1, 3), [("date", "M8[s]"), ("b", object)])),
                 lambda: client.store_copy(key, numpy.zeros(3, [("a:b", object)])),
                 lambda: client.store_copy(key, (ctypes.py_object * 2)(1, 2))):
        with pytest.raises(maru.InvalidArgumentError, match="references to objects"):
            call()
        assert not client.exists(key)
    assert client.store_copy(key, named).is_new
    assert bytes(client.retrieve(key).data) == named.tobytes()


def test_numbers_that_python_cannot_describe_are_stored(client, key):
    """As dates, and bfloat16."""
    numbers = numpy.arange(18).astype("M8[s]").reshape(2, 9)
    with pytest.raises(ValueError):
        memoryview(numbers)
    assert client.store_copy_batch([key + "1", key + "2"], numbers).is_new == [True, True]
    assert client.store_copy(key, numbers).is_new
    assert bytes(client.retrieve(key).data) == numbers.tobytes()


def test_what_the_calls_say_of_nothing(client, key):
    for call in (lambda: client.store_copy(key, b""), lambda: client.alloc(0), lambda: client.alloc_batch(0, 2)):
        with pytest.raises(maru.InvalidArgumentError, match="one byte or more"):
            call()
    for call in (lambda: client.store_copy(key, b"1", parent=7), lambda: client.pin_block(0)):
        with pytest.raises(maru.InvalidArgumentError, match="is no block"):
            call()


def test_a_digest_that_was_not_made_as_one(client):
    short = bytes.__new__(maru.Digest, b"12345")
    for call in (lambda: client.exists(short), lambda: client.exists_batch([short]), lambda: client.store_copy(short, b"x")):
        with pytest.raises(maru.InvalidArgumentError, match="16 or 32 bytes, not 5"):
            call()


def test_a_batch_that_is_too_long_is_refused_before_it_is_read(client):
    for many in (numpy.zeros(((1 << 20) + 1, 16), numpy.uint8), ["k"] * ((1 << 20) + 1)):
        with pytest.raises(maru.InvalidArgumentError, match=r"at most 2\^20 keys, not 1048577"):
            client.exists_batch(many)
