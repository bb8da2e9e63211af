"""The C library keeps the memory of large messages between them, once it is asked to."""
import os
import subprocess
import sys

import pytest

PAGES = 3 * (40 << 20) // 4096  # of what a round takes

PROGRAM = """
import importlib.util, resource, sys, threading
spec = importlib.util.find_spec("maru_lmcache.mp.message_memory")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.keep() if sys.argv[1] == "kept" else None)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def rounds():
    for _ in range(4):
        before = faults()
        messages = [b"x" * (40 << 20) for _ in range(3)]
        del messages
        last = faults() - before
    print(last)

thread = threading.Thread(target=rounds)
thread.start()
thread.join()
"""


def run(how, **environ):
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120,
                          env={**outer, **environ})
    assert done.returncode == 0, done.stderr
    answer, faults = done.stdout.split()
    return answer, int(faults)


def test_messages_meet_the_memory_of_those_before_them():
    answer, faults = run("kept")
    assert answer == "True" and faults < PAGES / 10
    assert run("as it is")[1] > PAGES / 2, "the control: the C library returns it"


@pytest.mark.parametrize("environ", [{"MALLOC_ARENA_MAX": "4"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}])
def test_what_the_environment_says_stays(environ):
    assert run("kept", **environ)[0] == "False"
