"""What the generator has marud.service wait for, of several configurations, good and bad: generator_writes.py SOURCE_TREE MARUD

Without systemd as the first process; systemd-escape and systemd-analyze are those of this machine. That systemd takes what is
written for a part of the unit is shown by scripts/vm-test systemd."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, MARUD = map(pathlib.Path, sys.argv[1:3])
GENERATOR = SOURCE / "systemd/system-generators/marud-generator"
GOOD = """
[daemon]
admin_group = "a-group-that-nobody-has-made"
[[pool]]
name = "a"
backend = "dax"
device = "/dev/dax0.0"
users = ["somebody-of-a-network-that-is-not-there-yet"]
policy = "not_built_in"
"""


def pool(name, *lines):
    return "\n".join([f'[[pool]]\nname = "{name}"\nbackend = "dax"', *lines, ""])


class Generator(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory(prefix="maru-generator-")
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)
        self.config, self.units = self.folder / "marud.toml", self.folder / "generator"
        self.units.mkdir()

    def generate(self, marud=MARUD, arguments=None):
        """Every file that is there afterwards, with its text; the boot is never failed."""
        environment = {**os.environ, "MARUD_GENERATOR_CONFIG": str(self.config), "MARUD_GENERATOR_MARUD": str(marud)}
        run = subprocess.run([GENERATOR, *([self.units] * 3 if arguments is None else arguments)], env=environment,
                             capture_output=True, text=True, timeout=60)
        self.said = run.stderr
        self.assertEqual((run.returncode, run.stdout), (0, ""), run)
        return {str(path.relative_to(self.units)): path.read_text() for path in self.units.rglob("*") if path.is_file()}

    def waits_for(self, text):
        self.config.write_text(text)
        written = self.generate()
        if not written:
            return []
        self.assertEqual(list(written), ["marud.service.d/50-devices.conf"])
        lines = dict(line.split("=", 1) for line in written["marud.service.d/50-devices.conf"].splitlines() if "=" in line)
        # No Requires=: one device's end is not every pool's. No SourcePath=: it would be shown as that of the whole unit.
        self.assertEqual(set(lines), {"Wants", "After"})
        self.assertEqual(lines["Wants"], lines["After"])
        return lines["Wants"].split(" ")

    def test_a_device_is_waited_for_whoever_is_not_known_yet(self):
        self.assertEqual(self.waits_for(GOOD), ["dev-dax0.0.device"])

    def test_each_device_once_and_those_with_the_control_region_too(self):
        text = pool("a", 'device = "/dev/dax0.0"', 'control_device = "/dev/dax1.0"')
        text += pool("b", 'device = "/dev//./dax1.0/"') + pool("c", 'device = "/dev/dax10.2"')
        self.assertEqual(self.waits_for(text), ["dev-dax0.0.device", "dev-dax1.0.device", "dev-dax10.2.device"])

    def test_names_are_escaped_as_systemd_does(self):
        self.assertEqual(self.waits_for(pool("a", 'device = "/dev/far-memory/%i a\\\\x\\"*$(false)"')),
                         [r"dev-far\x2dmemory-\x25i\x20a\x5cx\x22\x2a\x24\x28false\x29.device"])

    def test_nothing_is_waited_for_that_has_no_name_below_dev(self):
        for wish in ("uuid:21cf8fa9-19c5-ed97-f54d-62a331c51486", "node:0", "cxl:free", "/mnt/dax0.0", "/dev/../mnt/dax0.0",
                     "/dev", "/dev/", "/dev/.", "dax0.0", "", r"/dev/two\nlines"):
            self.assertEqual(self.waits_for(pool("a", f'device = "{wish}"')), [], wish)
        self.assertEqual(self.waits_for('[[pool]]\nname = "m"\nbackend = "memory"\nsize = "1GiB"\ndevice = "/dev/dax0.0"'), [])
        self.assertEqual(self.waits_for((SOURCE / "systemd/marud.toml").read_text()), [])
        self.assertEqual(self.waits_for(""), [])

    def test_a_broken_configuration_writes_nothing_and_says_why(self):
        for text in (GOOD + "[[pool", GOOD + "\x00", pool("a", "device = 7"), GOOD.replace('"dax"', "1"), "pool = 1",
                     GOOD + pool("b", "control_device = ['/dev/dax1.0']"), GOOD + "#" * (1 << 20)):
            self.assertEqual(self.waits_for(text), [], text[-100:])
            self.assertIn(str(self.config), self.said)

    def test_what_is_no_file_is_not_read(self):
        self.assertEqual(self.generate(), {})
        self.config.mkdir()
        self.assertEqual(self.generate(), {})
        self.config.rmdir()
        os.mkfifo(self.config)
        self.assertEqual(self.generate(), {})

    def test_a_marud_that_fails_or_is_not_there_writes_nothing(self):
        self.config.write_text(GOOD)
        bad = self.folder / "bad"
        bad.write_text("#!/bin/sh\necho /dev/dax0.0\nexit 1\n")
        bad.chmod(0o755)
        for marud in (bad, self.folder / "none", self.folder):
            self.assertEqual(self.generate(marud), {}, marud)

    def test_a_folder_that_cannot_be_written_is_no_failure(self):
        self.config.write_text(GOOD)
        self.assertEqual(self.generate(arguments=[]), {})
        self.assertEqual(self.generate(arguments=[""]), {})
        (self.units / "marud.service.d").symlink_to(self.folder / "none/none")
        self.assertEqual(self.generate(), {})

    def verify(self):
        """What systemd says of the service with what is there for it."""
        for unit in ("marud.service", "marud-provision.service"):
            shutil.copy(SOURCE / "systemd" / unit, self.units)
        run = subprocess.run(["systemd-analyze", "verify", "--man=no", self.units / "marud.service"], capture_output=True,
                             text=True, timeout=60, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{self.units}:"})
        return run.stdout + run.stderr

    def test_systemd_understands_what_is_written(self):
        self.waits_for(GOOD)
        self.assertNotIn("50-devices.conf", self.verify())

    def test_the_time_to_wait_is_said_of_the_device_as_the_manual_does(self):
        manual = (SOURCE / "man/marud.8.scd").read_text()
        [(unit, name, text)] = re.findall(r"# /etc/systemd/system/(\S+)\.d/(\S+)\n(.*?)```", manual, re.DOTALL)
        self.assertEqual(self.waits_for(GOOD), [unit])
        drop_in = self.units / f"{unit}.d" / name
        drop_in.parent.mkdir()
        drop_in.write_text(text)
        self.assertNotIn(name, self.verify())
        drop_in.write_text(text.replace("JobRunning", "JobRuning"))
        self.assertIn(name, self.verify())  # it does read it


if __name__ == "__main__":
    missing = [name for name in ("systemd-escape", "systemd-analyze") if not shutil.which(name)]
    if missing:
        print(f"{' and '.join(missing)} is not here (Debian package systemd)")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
