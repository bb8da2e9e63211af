"""maru.blocks: each transition, legal and illegal, and the pool. tests/blocks has the same of blocks.hpp."""
import gc
import threading

import pytest

import maru
from maru.blocks import BlockHash, BlockPool, BlockStateError, hash_tokens

PAGE_SIZE = 4
BLOCK_BYTES = 8192
SALT = 1337


@pytest.fixture
def pool(client):
    made = BlockPool(client, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES)
    before = client.statistics()
    yield made
    gc.collect()
    assert client.statistics().pins == before.pins, "something stayed pinned"


@pytest.fixture
def first(request):
    """A token of this test alone: the marud is shared."""
    return abs(hash(request.node.nodeid)) % (1 << 31)


def tokens_from(first, count):
    return list(range(first, first + count))


def filled(pool, tokens, parent=None):
    block = pool.allocate(1).blocks[0]
    block.init_sequence(SALT, parent)
    assert block.add_tokens(tokens) == []
    block.data[:2] = b"%02d" % (tokens[0] % 100)
    return block


def registered(pool, tokens, parent=None):
    return filled(pool, tokens, parent).commit().register()


def chain(pool, first, blocks):
    done, parent = [], None
    for i in range(blocks):
        done.append(registered(pool, tokens_from(first + i * PAGE_SIZE, PAGE_SIZE), parent))
        parent = done[-1].hash
    return done


def test_hashes_are_dynamos(pool):
    assert [hash.sequence for hash in hash_tokens(SALT, 4, [1, 2, 3, 4, 5, 6, 7, 8])] == [
        14643705804678351452, 4945711292740353085]
    with filled(pool, [5, 6, 7, 8], hash_tokens(SALT, 4, [1, 2, 3, 4])[0]).commit() as block:
        assert block.block_hash == 16777012769546811212
        assert block.sequence_hash == 4945711292740353085
        assert block.hash.check != block.hash.sequence


def test_states(pool, first):
    block = pool.allocate(1).blocks[0]
    assert (block.state, len(block), block.remaining) == ("Reset", 0, None)
    block.init_sequence(SALT)
    block.add_token(first)
    assert (block.state, len(block), block.remaining) == ("Partial", 1, 3)
    assert block.add_tokens([7, 8, 9, 10, 11]) == [10, 11]
    assert block.pop_token() == 9
    block.pop_tokens(1)
    assert block.tokens == (first, 7)
    block.add_tokens([8, 9])
    complete = block.commit()
    assert not block.is_held
    names = hash_tokens(SALT, PAGE_SIZE, [first, 7, 8, 9])
    assert complete.hash == names[0] and len(pool.match_blocks(names)) == 0
    again = complete.reset()
    assert again.state == "Reset"
    complete = again.apply_token_block(SALT, [first, 7, 8, 9])
    complete.data[:3] = b"abc"
    with complete.register() as block:
        assert block.is_new and bytes(block.data[:3]) == b"abc" and block.data.readonly and len(block.data) == BLOCK_BYTES
        with pool.match_blocks(names) as matched:
            assert [view.block for view in matched] == [block.block]
    assert pool.reset_blocks(names).reset == names


def test_illegal_transitions(pool, first):
    block = pool.allocate(1).blocks[0]
    tokens = tokens_from(first, PAGE_SIZE)
    for refused in (lambda: block.add_token(1), lambda: block.add_tokens([1]), block.pop_token, lambda: block.pop_tokens(0),
                    block.commit):
        with pytest.raises(BlockStateError, match="not partial: found a Reset block"):
            refused()
    with pytest.raises(BlockStateError, match="has 5 tokens, the pool's blocks have 4"):
        block.apply_token_block(SALT, tokens + [1])
    block.init_sequence(SALT)
    with pytest.raises(BlockStateError, match="no token to take away"):
        block.pop_token()
    block.add_tokens(tokens[:3])
    with pytest.raises(BlockStateError, match="found 3 tokens, expected 4"):
        block.commit()
    with pytest.raises(BlockStateError, match="not reset: it has a sequence of 3"):
        block.init_sequence(SALT)
    with pytest.raises(BlockStateError, match="not reset"):
        block.apply_token_block(SALT, tokens)
    with pytest.raises(BlockStateError, match="has 3 tokens; 4 were"):
        block.pop_tokens(4)
    block.add_token(tokens[3])
    with pytest.raises(BlockStateError, match="it has 4 of 4 tokens"):
        block.add_token(1)
    with pytest.raises(maru.InvalidArgumentError, match="32 bits; found -1"):
        block.add_tokens([-1])
    complete = block.commit()
    for used_up in (lambda: block.add_token(1), block.commit, block.reset, lambda: block.data):
        with pytest.raises(maru.HandleUsedError, match="MutableBlock has no block"):
            used_up()
    held = complete.register()
    for used_up in (complete.register, complete.reset, lambda: complete.data):
        with pytest.raises(maru.HandleUsedError, match="CompleteBlock has no block"):
            used_up()
    held.unregister()
    for used_up in (held.unregister, held.downgrade, lambda: held.data):
        with pytest.raises(maru.HandleUsedError, match="ImmutableBlock has no block"):
            used_up()
    held.release()


def test_parents(pool, first):
    absent = hash_tokens(SALT, PAGE_SIZE, tokens_from(first + 500, PAGE_SIZE))
    orphan = filled(pool, tokens_from(first, PAGE_SIZE), absent[0]).commit()
    with pytest.raises(maru.ParentGoneError):
        orphan.register()
    assert orphan.is_held
    parent = registered(pool, tokens_from(first + 500, PAGE_SIZE))
    child = orphan.register()
    with pytest.raises(maru.HasChildrenError):
        parent.unregister()
    assert parent.is_held
    child.unregister()
    parent.release()
    pool.client.delete_tree(parent.hash.key())  # marud may still count the child, which was held as it went


def test_match_and_scan(pool, first, other):
    names = hash_tokens(SALT, PAGE_SIZE, tokens_from(first, 5 * PAGE_SIZE))
    blocks = chain(pool, first, 4)
    theirs = BlockPool(other, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES)
    for block in blocks:
        block.release()
    with theirs.match_blocks(names) as matched:
        assert len(matched) == 4 and matched.hashes == names[:4]
        assert bytes(matched[3].data[:2]) == b"%02d" % ((first + 12) % 100)
        third = matched.hold(2)
        assert pool.reset_blocks(names[3:4]).not_reset == names[3:4], "another process holds it"
    with third, theirs.scan_matches([names[1], names[4], names[3]]) as found:
        assert found.hashes == [names[1], names[3]]
    assert pool.touch(names) == 4
    wrong = BlockHash(names[0].sequence, names[0].check ^ 1)
    assert len(pool.match_blocks([wrong])) == 0, "a collision is a miss"
    status = pool.status()
    assert status.inactive >= 4 and status.empty > 0
    result = pool.reset_blocks(names)
    assert (result.reset, result.not_found, result.not_reset) == (names[:4], names[4:], [])


def test_duplicates(pool, first):
    tokens = tokens_from(first, PAGE_SIZE)
    one = registered(pool, tokens)
    second, third = filled(pool, tokens).commit(), filled(pool, tokens).commit()
    second.data[:1], third.data[:1] = b"x", b"y"  # the first block begins with a digit
    rejected = second.register()
    assert not rejected.is_new and not rejected.is_duplicate and rejected.block == one.block
    assert bytes(rejected.data[:1]).isdigit()
    allowed = third.register("allow")
    assert allowed.is_duplicate and bytes(allowed.data[:1]) == b"y" and allowed.data.readonly
    for block in (one, rejected, allowed):
        block.release()
    assert pool.reset_blocks([one.hash]).reset == [one.hash]
    with pytest.raises(maru.InvalidArgumentError, match='expected "reject" or "allow"'):
        BlockPool(pool.client, block_bytes=1, duplicates="maybe")


class Unreadable:
    """A client that has lost its marud when it looks for a block."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def retrieve(self, *_):
        raise maru.DaemonUnreachableError("marud is away")


def test_a_duplicate_that_cannot_be_read_leaves_the_handle_as_it_was(pool, first):
    there = registered(pool, tokens_from(first, PAGE_SIZE))
    block = filled(pool, tokens_from(first, PAGE_SIZE)).commit()
    before = bytes(block.data)
    client, pool.client = pool.client, Unreadable(pool.client)
    with pytest.raises(maru.DaemonUnreachableError):
        block.register()
    pool.client = client
    assert block.is_held and bytes(block.data) == before
    with block.register() as found:
        assert found.block == there.block and not found.is_new
    there.release()


def test_late_unregister_and_weak_blocks(pool, first, other):
    tokens = tokens_from(first, PAGE_SIZE)
    late = registered(pool, tokens)
    weak = late.downgrade()
    theirs = BlockPool(other, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES)
    theirs.match_blocks([late.hash]).hold(0).unregister()
    newer = registered(theirs, tokens)
    assert newer.block != late.block
    with pytest.raises(maru.NotFoundError, match="this life of the block is over"):
        late.unregister()
    assert not late.is_held and weak.upgrade() is None
    with pool.match_blocks([newer.hash]) as found:
        assert found[0].block == newer.block, "the newer registration stays"
    newer.unregister()


class Recorder:
    def __init__(self):
        self.signs = []

    def on_register(self, event):
        self.signs.append(("+", event.hash, event.block))

    def on_remove(self, event):
        self.signs.append(("-", event.hash, event.block))


def test_register_precedes_remove(client, other, first):
    recorder = Recorder()
    heard = BlockPool(client, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES, listener=recorder)
    blocks = chain(heard, first, 2)
    names = [block.hash for block in blocks]
    for block in blocks:
        block.release()
    assert [sign for sign, *_ in recorder.signs] == ["+", "+"]
    assert heard.reset_blocks(names).reset == names
    assert sorted(sign for sign, *_ in recorder.signs) == ["+", "+", "-", "-"]
    registered(heard, tokens_from(first, PAGE_SIZE)).release()
    BlockPool(other, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES).reset_blocks(names)
    assert heard.reconcile() == 1 and heard.reconcile() == 0
    assert [sign for sign, hash, _ in recorder.signs if hash == names[0]] == ["+", "-", "+", "-"]


def test_reset_on_release(client, pool, first):
    fleeting = BlockPool(client, page_size=PAGE_SIZE, block_bytes=BLOCK_BYTES, reset_on_release=True)
    block = registered(fleeting, tokens_from(first, PAGE_SIZE))
    matched = fleeting.match_blocks([block.hash])
    block.release()
    assert len(pool.match_blocks([block.hash])) == 1
    gc.collect()
    matched.release()
    assert len(pool.match_blocks([block.hash])) == 0


def test_threads_register_one_hash_once(client, pool, first):
    rounds, fresh = 50, []

    def register():
        for i in range(rounds):
            with registered(pool, tokens_from(first + i, PAGE_SIZE)) as block:
                fresh.append(block.is_new)
                barrier.wait(60)
            barrier.wait(60)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(fresh) == rounds and len(fresh) == 4 * rounds


def test_bad_options(client):
    with pytest.raises(maru.InvalidArgumentError, match="page_size: found 0, expected 1 to 4096"):
        BlockPool(client, page_size=0, block_bytes=1)
    with pytest.raises(maru.InvalidArgumentError, match="block_bytes: found 0, expected 1 to"):
        BlockPool(client, block_bytes=0)
    with pytest.raises(maru.InvalidArgumentError):
        hash_tokens(SALT, 0, [1])
    with pytest.raises(maru.InvalidArgumentError, match="the number is no block"):
        client.delete_block(1 << 63)
