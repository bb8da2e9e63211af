"""Calls while the interpreter ends, when nothing can be imported any more."""
import subprocess
import sys

from conftest import PAGE

# Nothing was named before: then the exceptions had to be found.
LATE = """
import sys, maru
class Late:
    def __init__(self):
        self.client, self.wanted, self.say = maru.Client(sys.argv[1]), maru.InvalidArgumentError, sys.stdout.write
    def __del__(self):
        try:
            self.client.exists(3.5)
        except BaseException as error:
            self.say(f"{type(error).__name__} {isinstance(error, self.wanted)}")
late = Late()
"""


# As late as possible: when the modules themselves are gone.
LAST = """
import builtins, sys, maru
class Last:
    def __init__(self):
        self.client, self.say = maru.Client(sys.argv[1]), sys.stdout.write
    def __del__(self):
        client = self.client
        for call in (lambda: client.store_copy("last", b"1").is_new, lambda: client.exists("last"),
                     lambda: client.store_chain(["last 1"], client.alloc_batch(4, 1)).new_blocks,
                     lambda: client.store_copy_batch(["last 2"], [b"x"]).is_new, lambda: client.evicted(),
                     lambda: client.geometry().page_bytes, lambda: client.statistics().stores):
            try:
                self.say(f"{call()} ")
            except BaseException as error:
                self.say(f"{type(error).__name__} {error} ")
builtins.last = Last()
"""


def test_stores_succeed_when_the_interpreter_ends(marud):
    run = subprocess.run([sys.executable, "-c", LAST, marud.socket], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, f"True True 1 [True] [] {PAGE} 3 "), run.stderr


def test_what_is_named_first_when_the_interpreter_ends(marud):
    run = subprocess.run([sys.executable, "-c", LATE, marud.socket], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "InvalidArgumentError True"), run.stderr
