"""A vLLM that computes, with marud: scripts/test-engines --live installs it. The fixtures of ../conftest.py are here, too.

Every answer is compared with that of an engine without connector, token by token.
"""
import contextlib
import json
import pathlib
import random
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from engines import PATIENCE_S, Engine, transfer  # noqa: E402
from with_marud import Marud  # noqa: E402

VOCABULARY = 512
BLOCK, CHUNK = 128, 256  # tokens: of a block, by vLLM's default on a processor, and of a chunk, by maru's


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="session")
def model(folder):
    import small_llama
    return small_llama.make(folder / "model", vocabulary=VOCABULARY)


class Pool(Marud):
    """A marud with a pool that takes chunks of the small model, and what its administrator sees."""

    def __init__(self, program, size="256MiB", region_bytes="4MiB"):
        super().__init__(program, size=size, page_bytes="64KiB", region_bytes=region_bytes, more="")

    def ctl(self, *arguments):
        marudctl = pathlib.Path(self.program).with_name("marudctl")
        done = subprocess.run([marudctl, "--socket", self.socket, "--json", *arguments], capture_output=True, text=True,
                              timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def status(self):
        (pool,) = self.ctl("status")["pools"]
        return pool

    def pins(self):
        return self.ctl("pins")["pins"]

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def shared(marud_program):
    """The marud of most tests."""
    with Pool(marud_program) as running:
        yield running


@pytest.fixture(scope="session")
def start(model, folder):
    """Begins engines, which are ready later: start(NAME, POOL or None, OPTION...). They end with the tests. kv: a
    kv_transfer_config of another connector."""
    with contextlib.ExitStack() as engines:
        def begin(name, pool=None, connector=None, role="kv_both", extra=None, environ=None, kv=None, **options):
            module = "watched_connectors" if connector else "maru.vllm"
            if pool is not None:
                kv = transfer(pool.socket, module=module, connector=connector or "MaruConnector", role=role, **(extra or {}))
            return engines.enter_context(Engine(model, folder, name, kv, environ=environ, **options))
        yield begin


@pytest.fixture(scope="session")
def reference(start):
    """Without connector."""
    return start("reference")


@pytest.fixture(scope="session")
def first(start, shared):
    return start("first", shared)


@pytest.fixture(scope="session")
def second(start, shared, first):
    return start("second", shared)


@pytest.fixture
def tokens(request):
    """Prompts of this test alone: tokens(N) is a list of N."""
    chance = random.Random(request.node.nodeid)
    return lambda n: [chance.randrange(VOCABULARY) for _ in range(n)]


@pytest.fixture
def right(reference):
    """What is right for prompts: an engine without connector answers them."""
    known = {}

    def compute(prompts, n=8):
        missing = [prompt for prompt in prompts if (tuple(prompt), n) not in known]
        if missing:
            for prompt, answer in zip(missing, reference.answers(missing, n)["tokens"]):
                known[tuple(prompt), n] = answer
        return [known[tuple(prompt), n] for prompt in prompts]
    return compute


def loadable(prompt):
    """How many of its tokens another engine can load when all of its chunks are in the pool. One token is left to compute, and
    only whole blocks are loaded."""
    return min(len(prompt) // CHUNK * CHUNK, (len(prompt) - 1) // BLOCK * BLOCK)
