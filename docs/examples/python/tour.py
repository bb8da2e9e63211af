"""A quick tour of marud in Python: starts a marud of its own with a pool of 16 MiB, shares a prompt's blocks between two clients,
fills the pool, and draws what is where. Nothing else on this machine is touched.

    python3 tour.py [--marud PROGRAM]
"""
import argparse
import hashlib
import pathlib
import subprocess
import tempfile
import time

import maru

BLOCK = 256 * 1024
CONFIG = """
[daemon]
socket = "{folder}/marud.sock"
state_dir = "{folder}/state"

[[pool]]
name = "default"
backend = "memory"
size = "16MiB"
page_bytes = "4KiB"
region_bytes = "1MiB"
lanes = 16
pins = 1024
"""


def start(program, folder):
    (folder / "marud.toml").write_text(CONFIG.format(folder=folder))
    try:
        marud = subprocess.Popen([program, "--config", folder / "marud.toml"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
    except OSError as error:
        raise SystemExit(f"{program}: {error.strerror}; name the program marud with --marud") from None
    while True:
        try:
            maru.Client(str(folder / "marud.sock")).close()
            return marud
        except (maru.NotFoundError, maru.DaemonUnreachableError):  # not yet
            if marud.poll() is not None:
                raise SystemExit(f"{program} did not start; is it the program marud?") from None
            time.sleep(0.02)


def chain(prompt, blocks):
    """A key for each block of a prompt, which says all that comes before it."""
    keys, before = [], prompt.encode()
    for number in range(blocks):
        before = hashlib.sha256(before + number.to_bytes(4, "little")).digest()
        keys.append(maru.Digest(before))
    return keys


def draw(client, keys, pinned=0):
    """One character for each block: P held by us, # there, . gone or not stored yet."""
    there = client.exists_batch(keys)
    print("    |" + "".join(("P" if i < pinned else "#") if is_there else "." for i, is_there in enumerate(there)) + "|")


def tour(socket):
    with maru.Client(socket) as writer, maru.Client(socket) as reader:
        shape = writer.geometry()
        print(f"A pool of {shape.pages * shape.page_bytes >> 10} KiB for blocks, in regions of "
              f"{shape.region_pages * shape.page_bytes >> 10} KiB.\n")

        prompt = chain("You are a helpful assistant.", 24)
        print("One client stores 8 of a prompt's 24 blocks, each under the one before:")
        buffers = writer.alloc_batch(BLOCK, 8)
        for number, buffer in enumerate(buffers):
            buffer.data[:] = bytes([number]) * BLOCK
        writer.store_chain(prompt[:8], buffers)
        draw(writer, prompt)

        print("\nAnother asks how much of it is there, and holds that. It reads in place, without asking anybody:")
        match = reader.match_prefix(prompt)
        draw(reader, prompt, pinned=match.blocks)
        print(f"    {match.blocks} blocks, and block 5 begins with {bytes(match.resolve(prompt[:8])[5].data[:4])!r}")

        print("\nThe first fills the pool twice over. What is held stays; of the rest the oldest goes:")
        others = [chain(f"prompt {number}", 1)[0] for number in range(2 * shape.pages * shape.page_bytes // BLOCK)]
        for key in others:
            writer.store_copy(key, bytes(BLOCK))
        draw(reader, prompt, pinned=match.blocks)
        for begin in range(0, len(others), 64):
            draw(reader, others[begin:begin + 64])
        now = writer.statistics()
        print(f"    {now.stores} stores, {now.evicted} blocks evicted for them, {now.rents} requests to marud")

        match.release()
        print("\nLet go of, it is as good as any other:")
        for key in (chain(f"more {number}", 1)[0] for number in range(len(others))):
            writer.store_copy(key, bytes(BLOCK))
        draw(reader, prompt)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--marud", default="marud", help="the program (default: the one in PATH)")
    program = arguments.parse_args().marud
    with tempfile.TemporaryDirectory(prefix="maru-tour-") as name:
        folder = pathlib.Path(name)
        marud = start(program, folder)
        try:
            tour(str(folder / "marud.sock"))
        finally:
            marud.terminate()
            marud.wait()


if __name__ == "__main__":
    main()
