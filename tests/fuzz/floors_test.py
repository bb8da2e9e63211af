"""The floors of scripts/fuzz --coverage, tried with counts that are made up: which targets reach enough of their lines, what is
said of one that does not, and the exit status. Nothing is built or fuzzed: floors_test.py SCRIPT"""
import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import unittest

loader = importlib.machinery.SourceFileLoader("fuzz", sys.argv[1])
fuzz = importlib.util.module_from_spec(importlib.util.spec_from_loader("fuzz", loader))
sys.dont_write_bytecode = True
loader.exec_module(fuzz)
LINES = 1000  # of each file


def files_of(target):
    return sorted({str(path.relative_to(fuzz.ROOT)) for pattern in fuzz.FILES[target] for path in fuzz.ROOT.glob(pattern)})


def counts(target, per_mille):
    """Of each file of the target so many lines in a thousand were reached, some of them often."""
    return {file: {line: (line < per_mille) * (1 + line % 7) for line in range(LINES)} for file in files_of(target)}


class Floors(unittest.TestCase):
    def status(self, lines_of, *words):
        """What the command returns and says when each target reached these lines."""
        at = []
        fuzz.build = lambda targets, coverage: pathlib.Path("/nonexistent")
        fuzz.run = lambda folder, target, seconds, seeds: at.append(target) or 1000
        fuzz.reached = lambda folder: lines_of(at[-1])
        argv, sys.argv = sys.argv, ["fuzz", "--coverage", *words]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                return fuzz.main(), said.getvalue()
        finally:
            sys.argv = argv

    def test_every_target_has_a_floor_and_files(self):
        self.assertEqual(set(fuzz.FLOORS), set(fuzz.FILES))
        for target, floor in fuzz.FLOORS.items():
            self.assertTrue(fuzz.LITTLE < floor < 100, target)
            self.assertTrue(files_of(target), target)

    def test_the_floor_itself_is_enough(self):
        status, said = self.status(lambda target: counts(target, 10 * fuzz.FLOORS[target]))
        self.assertEqual(status, 0, said)
        self.assertNotIn("expected at least", said)

    def test_one_line_in_a_thousand_less_is_not(self):
        for low in fuzz.FILES:
            status, said = self.status(lambda target: counts(target, 10 * fuzz.FLOORS[target] - (target == low)))
            self.assertEqual(status, 1, low)
            share, floor = fuzz.FLOORS[low] - 0.1, fuzz.FLOORS[low]
            self.assertIn(f"\n{low}: found {share:.1f} % of its lines reached, expected at least {floor} %\n", said)
            self.assertEqual(said.count("expected at least"), 1, said)

    def test_a_target_that_is_not_asked_for_trips_nothing(self):
        self.assertEqual(self.status(lambda target: counts(target, 990 * (target == "http")), "http")[0], 0)
        self.assertEqual(self.status(lambda target: counts(target, 990 * (target == "http")), "region")[0], 1)

    def test_nothing_reached_trips_whatever_was_counted(self):
        for lines_of in (lambda target: {}, lambda target: counts(target, 0),
                         lambda target: {"daemon/main.cc": {line: 1 for line in range(LINES)}}):
            status, said = self.status(lines_of)
            self.assertEqual((status, said.count("found 0.0 % of its lines reached")), (1, len(fuzz.FILES)))

    def test_a_floor_of_the_command_line_goes_before(self):
        self.assertEqual(self.status(lambda target: counts(target, 100), "--floor", "10")[0], 0)
        self.assertEqual(self.status(lambda target: counts(target, 950), "--floor", "95.5")[0], 1)

    def test_files_that_are_hardly_reached_are_named(self):
        target = "requests"
        first = files_of(target)[0]
        said = self.status(lambda _: {**counts(target, 1000), first: counts(target, 499)[first]}, target)[1]
        self.assertIn(f"under {fuzz.LITTLE} %: {first} (49.9 %)\n", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
