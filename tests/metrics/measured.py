"""A look at what marud counts, before and after something was done, and what was seen to move."""
import math

from exposition import Exposition
from observed_marud import Findings, wait_for

findings = Findings()
expect = findings.expect
moved = set()  # families that a test has seen change as it should


class Look:
    """Before and after something was done."""

    def __init__(self, marud):
        self.marud = marud
        self.before = look(marud)

    def by(self, difference, name, **labels):
        """Waits for what marud learns a moment later."""
        def has_moved():
            self.after = look(self.marud)
            return math.isclose(self.now(name, labels) - (self.before.value(name, **labels) or 0), difference)
        try:
            wait_for(has_moved, name)
        except SystemExit:
            pass
        was, now = self.before.value(name, **labels), self.now(name, labels)
        expect(now - (was or 0) == difference, f"{name} {labels}: {was} before, {now} after, expected {difference} more")
        if difference != 0:
            moved.add(name)

    def now(self, name, labels):
        return self.after.value(name, **labels) or 0

    def to(self, value, name, **labels):
        def is_there():
            self.after = look(self.marud)
            found = self.after.value(name, **labels)
            return found is not None and math.isclose(found, value, abs_tol=1e-9)
        try:
            wait_for(is_there, name)
        except SystemExit:
            pass
        was, now = self.before.value(name, **labels), self.after.value(name, **labels)
        expect(now is not None and math.isclose(now, value, abs_tol=1e-9), f"{name} {labels}: {now}, expected {value}")
        if was is None or math.isnan(was) or was != value:
            moved.add(name)

    def changes(self, name, **labels):
        def is_another():
            self.after = look(self.marud)
            return self.after.value(name, **labels) != self.before.value(name, **labels)
        try:
            wait_for(is_another, name)
            moved.add(name)
        except SystemExit:
            expect(False, f"{name} {labels} stays {self.after.value(name, **labels)}")

    def more(self, name, **labels):
        def has_grown():
            self.after = look(self.marud)
            return self.now(name, labels) > (self.before.value(name, **labels) or 0)
        try:
            wait_for(has_grown, name)
            moved.add(name)
        except SystemExit:
            expect(False, f"{name} {labels} did not grow: {self.after.value(name, **labels)}")


def look(marud):
    reply = marud.http("GET", "/metrics")
    expect(reply.status == 200 and reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", reply)
    return Exposition(reply.text)
