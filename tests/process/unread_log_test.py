"""A log without a reader holds up nothing: clients attach and rent, HTTP answers, SIGTERM ends marud.

  unread_log_test.py --marud PROGRAM --client PROGRAM
"""
import argparse
import contextlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from observed_marud import PATIENCE, BlockClient, Findings, wait_for  # noqa: E402
from unread_log import LOST, UnreadLogMarud  # noqa: E402

findings = Findings()
expect = findings.expect
CLIENTS = 15  # the pool has 16 lanes


def lines_are_dropped_and_counted(program, client_program):
    with UnreadLogMarud(program) as marud, contextlib.ExitStack() as stack:
        marud.fill_log()
        clients = [stack.enter_context(BlockClient(client_program, marud)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            expect(client.ask(f"store key{number} 4096") == 0, f"client {number} has memory")
        expect(marud.http("GET", "/healthcheck").json["status"] == "healthy", "HTTP")
        dropped = marud.dropped()
        marud.read_log()
        said = wait_for(lambda: LOST.search(marud.read), "how many lines were dropped")
        expect(int(said.group(1)) >= dropped, f"{said.group(1)} lines are said to be dropped, and were {dropped} before")
        expect(int(said.group(1)) == marud.dropped(), "what the log says is what was counted")
        before = marud.read[:said.start()]
        expect("listens on" in before and before.index("listens on") < before.index(" connected"), "the first lines come first")
        marud.come_and_go(1)
        wait_for(lambda: " connected" in marud.read[said.end():], "lines again")
        marud.process.terminate()
        expect(marud.process.wait(PATIENCE) == 0, "its end")
        wait_for(lambda: "SIGTERM: marud stops" in marud.read, "the last lines")


def the_end_is_not_held_up(program):
    with UnreadLogMarud(program) as marud:
        marud.fill_log()
    expect(marud.status == 0, f"marud ended with {marud.status}")


def a_full_disk_holds_nobody_up(program):
    with UnreadLogMarud(program, on="/dev/full") as marud:
        marud.fill_log()
        expect(marud.http("GET", "/healthcheck").json["status"] == "healthy", "HTTP on a full disk")
    expect(marud.status == 0, f"marud on a full disk ended with {marud.status}")


def main():
    lines_are_dropped_and_counted(arguments.marud, arguments.client)
    the_end_is_not_held_up(arguments.marud)
    a_full_disk_holds_nobody_up(arguments.marud)
    return findings.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("marud", "client"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    sys.exit(main())
