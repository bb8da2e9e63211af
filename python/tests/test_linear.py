"""That the work for the keys of a prompt grows with its tokens and not with their square: what is handed to the hash functions
is counted, however the prompt comes, at once or piece by piece as the engine computes it."""
import types

import numpy
import pytest

from maru import chunk_keys, tokens
from maru.vllm_plan import RequestPlan

CHUNK = 16
ROOT = bytes(range(32))


class Counted:
    """The tokens and the calls that reached the C library, in order."""

    def __init__(self, monkeypatch):
        self.tokens, self.calls, real = 0, 0, tokens._tokens.hash

        def hash_and_count(algorithm, prompt, block_tokens, parent, *rest):
            self.calls += 1
            self.tokens += prompt.size
            return real(algorithm, prompt, block_tokens, parent, *rest)

        monkeypatch.setattr(tokens, "_tokens", types.SimpleNamespace(hash=hash_and_count))


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


class SlicedList(list):
    """Tokens as the scheduler keeps them. Counts how many of them are copied out."""

    copied = 0

    def __getitem__(self, index):
        part = super().__getitem__(index)
        self.copied += len(part) if isinstance(index, slice) else 1
        return part


def image(token, name="image"):
    return types.SimpleNamespace(modality="image", identifier=name, mm_position=types.SimpleNamespace(offset=token, length=2))


def plan_of(n, features=()):
    request = types.SimpleNamespace(request_id="r", all_token_ids=SlicedList(range(n)), mm_features=list(features))
    return RequestPlan(request, ROOT)


@pytest.mark.parametrize("n", [CHUNK * 8, CHUNK * 64, CHUNK * 512])
def test_a_prompt_that_comes_at_once_is_hashed_in_one_call(counted, n):
    plan = plan_of(n + CHUNK - 1)
    assert len(plan.hash_to(n + CHUNK - 1, CHUNK)) == n // CHUNK * chunk_keys.HASH_BYTES
    assert (counted.calls, counted.tokens, plan.request.all_token_ids.copied) == (1, n, n)


@pytest.mark.parametrize("step", [1, CHUNK - 3, CHUNK, CHUNK * 5 + 1])
@pytest.mark.parametrize("n", [CHUNK * 8, CHUNK * 64, CHUNK * 256])
def test_a_prompt_that_comes_in_steps_is_hashed_once(counted, n, step):
    """Every step asks again for everything so far, as the scheduler does."""
    plan = plan_of(n)
    for end in [*range(step, n, step), n]:
        plan.hash_to(end, CHUNK)
        plan.hash_to(end, CHUNK)
    assert (counted.tokens, plan.request.all_token_ids.copied) == (n, n)
    assert counted.calls <= n // CHUNK
    in_steps, at_once = plan.hashes, plan_of(n).hash_to(n, CHUNK)
    assert in_steps == at_once


def test_asking_again_and_for_less_hashes_nothing(counted):
    plan = plan_of(CHUNK * 64)
    all_of_it = plan.hash_to(CHUNK * 64, CHUNK)
    assert all(plan.hash_to(n, CHUNK) == all_of_it[:n // CHUNK * 32] for n in range(CHUNK * 64))
    assert (counted.calls, counted.tokens) == (1, CHUNK * 64)


@pytest.mark.parametrize("images", [1, 8, 64])
def test_images_split_the_call_and_hash_no_token_twice(counted, images):
    n = CHUNK * 256
    plan = plan_of(n, [image(chunk * CHUNK + 3) for chunk in range(1, 256, 256 // images)])
    plan.hash_to(n, CHUNK)
    assert counted.tokens == n and counted.calls == images + 1


@pytest.mark.parametrize("before", [0, CHUNK // 2])
def test_images_of_later_turns_change_the_hashes(before):
    """A streaming session's tokens and images grow in place; its last chunk may be half full."""
    def session(name):
        plan = plan_of(CHUNK * 2 + before, [image(3)])
        first = plan.hash_to(CHUNK * 2 + before, CHUNK)
        plan.request.all_token_ids.extend([99] * CHUNK * 2)
        plan.request.mm_features.append(image(CHUNK * 2 + before, name))
        return first, plan.hash_to(CHUNK * 4, CHUNK)

    (first, cat), (again, dog) = session("cat"), session("dog")
    assert first == again == cat[:len(first)] == dog[:len(first)]
    assert not {cat[i:i + 32] for i in (64, 96)} & {dog[i:i + 32] for i in (64, 96)}


@pytest.mark.parametrize("algorithm", ["blake3", "sha256_cbor", "sha256", "xxhash_cbor", "xxhash"])
def test_a_hash_follows_from_its_block_and_the_hash_before_alone(algorithm):
    """So nothing of a chain needs what is further back, and a chain may be continued anywhere."""
    call = tokens.lmcache if algorithm == "blake3" else tokens.vllm
    prompt = numpy.arange(CHUNK * 32, dtype=numpy.uint32)
    chain = call(prompt, CHUNK, algorithm=algorithm, parent=ROOT)
    before = ROOT
    for i, row in enumerate(chain):
        [alone] = call(prompt[i * CHUNK:(i + 1) * CHUNK], CHUNK, algorithm=algorithm, parent=before)
        assert bytes(alone) == bytes(row)
        before = bytes(row)
