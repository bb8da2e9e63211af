"""What a pool that is well seldom counts: damage, what is full, what comes too late, what two do at one moment."""
import errno
import struct
import subprocess
import tempfile

from measured import Look, expect, look
from observed_marud import PATIENCE, BlockClient, ObservedMarud, wait_for
from unread_log import UnreadLogMarud


def damage(program, client_program):
    """A block whose bytes changed is found by its checksum."""
    with ObservedMarud(program, more="checksums = true\n") as marud, BlockClient(client_program, marud) as client:
        expect(client.ask("store sum 4096") == 0 and client.ask("retrieve sum") == 0, "a block with a checksum")
        step = Look(marud)
        marud.damage(b"x" * 4096)
        expect(client.ask("retrieve sum") == -errno.EIO, "a block that was damaged")
        step.by(1, "maru_checksum_errors_total")
        step.by(-1, "maru_blocks")


def pins_without_end(program, client_program):
    """Slots for pins run out; what is pinned stays out of the order of eviction, and keeps marud evicting in vain."""
    with ObservedMarud(program, size="4MiB", region_bytes="256KiB", pins=64) as marud, \
            BlockClient(client_program, marud) as client:
        expect(client.ask("fill p 200 4096") == 200, "filling")
        step = Look(marud)
        expect(64 <= client.ask("pile p 200") < 200, "as many pins as there are slots")
        step.by(1, "maru_pin_refusals_total")
        expect(client.ask("unpile") == 0, "letting go")
    marks = "high_watermark = 0.5\nlow_watermark = 0.4\n"
    with ObservedMarud(program, size="8MiB", region_bytes="256KiB", more=marks) as marud, \
            BlockClient(client_program, marud) as client:
        expect(client.ask("fill p 500 4096") == 500 and client.ask("pile p 500") == 500, "blocks and pins")
        step = Look(marud)
        marud.http("PUT", "/policy", {"name": "none"})
        step.more("maru_queues_rebuilt_total")
        expect(client.ask("fill q 700 4096") == 700 and client.ask("pile q 700") == 1200, "more than the high watermark")
        step = Look(marud)
        marud.http("PUT", "/policy", {"name": "lru"})
        step.to(1, "maru_evicting")
        step.more("maru_held_blocks")
        expect(client.ask("unpile") == 0, "letting go")
        step.more("maru_evicted_blocks_total", reason="background")
        step.to(0, "maru_evicting")
        step.by(0, "maru_held_blocks")


def a_log_without_a_reader(program):
    """Lines that the pipe does not take are dropped."""
    with UnreadLogMarud(program) as marud:
        step = Look(marud)
        marud.fill_log()
        step.more("maru_log_dropped_lines_total")


def files_of_sockets(program):
    """The files that lead to marud's sockets are removed."""
    with ObservedMarud(program) as marud:
        step = Look(marud)
        marud.socket.unlink()
        step.by(1, "maru_sockets_lost_total", socket="clients")
        marud.http_socket.unlink()
        wait_for(marud.answers, "the socket of HTTP")
        step.by(1, "maru_sockets_lost_total", socket="http")


def keys_of_one_bucket(secret):
    """Digests that a pool with this secret looks for in the same place: libmaru/shm/blocks/hash.h, backwards."""
    def folded(a, b):
        return (a * b ^ a * b >> 64) & (1 << 64) - 1
    for number in range(100):
        low, high = number << 32 | 1, 1 << 63
        high ^= folded(low ^ secret[2], secret[5] | 1)
        low ^= folded(high ^ secret[1], secret[4] | 1)
        high ^= folded(low ^ secret[0], secret[3] | 1)
        yield struct.pack("<QQ", low ^ secret[10], high).hex()


def a_crowded_bucket(marud, client):
    """All blocks of a bucket are pinned, so none makes room for another key. The secret of the pool tells which keys meet."""
    secret = struct.unpack("<16Q", marud.peek("default", 360, 128))
    step = Look(marud)
    results = []
    for key in keys_of_one_bucket(secret):
        results.append(client.ask(f"pile128 {key} 4096"))
        if results[-1] != 0:
            break
    expect(len(results) > 7 and results[-1] == -errno.EXFULL, f"keys of one bucket: {results}")
    step.by(1, "maru_registry_full_total")
    client.ask("unpile")


def chains_that_are_none(marud, client):
    """Blocks that follow each other in a request and name no parents: what looks like the end of a prefix proves nothing."""
    for i in range(4):
        client.ask(f"store loose{i} 4096")
    step = Look(marud)
    expect(client.ask("match loose0 loose1 loose2 loose3") == 4, "matching")
    step.more("maru_prefix_walks_total")


def what_expires(marud, client):
    step = Look(marud)
    expect(client.ask("store brief 4096 - - 1") == 0, "storing for a millisecond")
    step.more("maru_evicted_blocks_total", reason="expired")


def readers_faster_than_marud(program, client_program, marudctl):
    """A ring that turns faster than it is read loses uses, and a reader that comes between an evictor's two looks at a block
    puts it back: that is a matter of luck, so both go on until it has happened."""
    with ObservedMarud(program, size="8MiB", region_bytes="256KiB", more="touch_entries = 64\n") as marud, \
            BlockClient(client_program, marud) as reader, BlockClient(client_program, marud) as writer:
        step = Look(marud)
        expect(writer.ask("fill h 1000 4096") == 1000, "filling")
        expect(reader.ask("hammer h 1000 200") > 64, "reading")
        step.more("maru_lost_touches_total")
        step = Look(marud)
        def revived():
            reader.tell("hammer h 1000 500")
            for _ in range(8):
                subprocess.run([marudctl, "--socket", marud.socket, "evict", "256"], check=True, timeout=PATIENCE,
                               stdout=subprocess.DEVNULL)
                writer.ask("fill h 1000 4096")
            reader.answer()
            return look(marud).value("maru_revives_total") > 0
        wait_for(revived, "a block that was put back")
        step.more("maru_revives_total")


def room_that_is_not_promised(program, client_program):
    """A pool in a file that may not take all its room at once takes it region by region."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="maru-room-") as folder:
        bare = (f'[[pool]]\nname = "bare"\nbackend = "file"\npath = "{folder}/pool"\nsize = "8MiB"\npage_bytes = "4KiB"\n'
                'region_bytes = "256KiB"\nlanes = 8\npins = 64\ntouch_entries = 64\nreserve = false\n')
        with ObservedMarud(program, more=bare) as marud, BlockClient(client_program, marud, "bare") as client:
            step = Look(marud)
            expect(step.before.value("maru_pool_unreserved_bytes", pool="bare") > 2**20, "nothing of it has room")
            expect(client.ask("store k 4096") == 0, "storing")
            step.by(-2**18, "maru_pool_unreserved_bytes", pool="bare")


def tenants_without_a_place(program, client_program):
    with ObservedMarud(program, more="tenants_max = 1\ndefault_hard_limit = 8192\n") as marud, \
            BlockClient(client_program, marud) as client:
        step = Look(marud)
        expect(client.ask("store a 4096 first") == 0, "the tenant with the place")
        expect(client.ask("store b 4096 second") == -errno.EUSERS, "a tenant without one")
        step.by(1, "maru_tenant_place_refusals_total")


def hosts(program):
    """Two maruds that play two hosts of a pool in a file, one of which stops without a word."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="maru-hosts-") as folder:
        shared = (f'[[pool]]\nname = "shared"\nbackend = "file"\npath = "{folder}/pool"\nsize = "8MiB"\npage_bytes = "4KiB"\n'
                  'region_bytes = "256KiB"\nlanes = 8\npins = 64\ntouch_entries = 64\n'
                  'profile = "shared"\ncoherent = true\nhosts = 2\n')
        one, two = ObservedMarud(program, more=shared), ObservedMarud(program, more=shared)
        one.arguments = ["--machine-id", "abcdef00", "--boot-id", "11111111-1111-4111-8111-111111111111"]
        two.arguments = ["--machine-id", "abcdef01", "--boot-id", "22222222-2222-4222-8222-222222222222"]
        with one as marud:
            step = Look(marud)
            step.to(1, "maru_hosts", pool="shared", state="live")
            with two as other:
                step.to(2, "maru_hosts", pool="shared", state="live")
                other.process.kill()
                step.to(1, "maru_hosts", pool="shared", state="suspect")
                step.to(1, "maru_hosts", pool="shared", state="live")
            found = {pool["name"]: pool.get("hosts") for pool in marud.http("GET", "/status").json["pools"]}
            expect(found == {"default": None, "shared": {"live": 1, "suspect": 1, "dead": 0}}, f"hosts in status: {found}")
