"""That threads may be the first to need NumPy. In processes of their own: it is found once in each."""
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
    import sys
    import threading
    import numpy
    import maru
    from maru import _tokens

    client = maru.Client(sys.argv[1], timeout_ms=60_000)
    rows = numpy.zeros((4, 16), numpy.uint8)
    prompt = numpy.zeros(256, numpy.uint32)

    def at_once(call):
        # As where numpy.core.multiarray is no part of what `import numpy` loads, which it is not from NumPy 2 on.
        sys.modules.pop("numpy.core.multiarray", None)
        start = threading.Barrier(4)
        threads = [threading.Thread(target=lambda: [start.wait(), call()]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""

CALLS = {
    "an array of keys": "client.exists_batch(rows)",
    "an array that is made": "client.exists_batch(memoryview(rows))",
    "tokens": '_tokens.hash(1, prompt, 256, b"parent", None, None)',
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_threads_that_need_numpy_first_do_not_wait_for_ever(marud, call):
    script = textwrap.dedent(BEGIN) + f"at_once(lambda: {call})\nprint('done')\n"
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(marud.socket)], capture_output=True, text=True,
                           timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
