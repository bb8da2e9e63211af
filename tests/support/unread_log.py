"""A marud whose standard error is a pipe of 4 KiB without a reader, until a test reads it."""
import fcntl
import os
import re
import socket
import threading

from observed_marud import ObservedMarud, wait_for

PIPE_BYTES = 4096
LOST = re.compile(r"(\d+) lines of the log were dropped here")


class UnreadLogMarud(ObservedMarud):
    def __init__(self, program, on=None, **shape):
        """`on`: the file in place of the pipe."""
        super().__init__(program, **shape)
        self.on = on
        self.reader = self.reading = None

    def begin(self):
        self.arguments = ["--log-level", "debug"]
        self.writes_to = self.on
        if not self.on:
            self.reader, self.writes_to = os.pipe()
            fcntl.fcntl(self.writes_to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        super().begin()

    def come_and_go(self, times):
        """Each connection is two lines at least."""
        for _ in range(times):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(self.socket))

    def fill_log(self):
        """Until lines are dropped, and marud has done with the connections that caused them: they count against the user."""
        def is_full():
            self.come_and_go(200)
            return self.dropped() > 0
        wait_for(is_full, "lines that are dropped")
        wait_for(lambda: self.number("maru_connections") == 0, "the end of the connections")

    def number(self, metric):
        text = self.http("GET", "/metrics").text
        return int(re.search(rf"^{metric} (\d+)", text, re.MULTILINE).group(1))

    def dropped(self):
        return self.number("maru_log_dropped_lines_total")

    def read_log(self):
        """Reads from here on, into `read`."""
        self.read = ""
        self.reading = threading.Thread(target=self._read)
        self.reading.start()

    def _read(self):
        while got := os.read(self.reader, 1 << 16):
            self.read += got.decode(errors="replace")

    def end(self):
        super().end()
        if self.reading:
            self.reading.join()
        if self.reader is not None:
            os.close(self.reader)
