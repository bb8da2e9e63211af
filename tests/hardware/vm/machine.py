"""Emulated machines for the tests of what the machine at hand does not have: NVDIMMs, CXL memory, several hosts.

A suite is a program in this folder, started by scripts/vm-test NAME or by meson:

    import machine

    def run(suite):
        nvdimm = machine.Nvdimm(suite.file("nvdimm.img", 514 * machine.MIB))
        suite.machine("one", modules=machine.NVDIMM, nvdimms=[nvdimm]).run(STEPS, seconds=100)

    machine.main("devdax", run, __doc__)

STEPS is bash that runs in the guest as root, after guest_steps.bash, whose `step NAME SECONDS COMMAND...` runs a command or a
function of the steps and writes `ok NAME`, `FAILED NAME ...` or `skipped NAME: WHY` (status 77, or out of time). The guest sees
this machine's files under their own names, read-only below a layer in its own memory; it has no network. $build and $source are
set, and what `settings` names. /tmp is this machine's; $TMPDIR and /run are the guest's own.

A machine with `root` has another folder's files instead, such as a Debian system of its own, and with `first_process` starts
that program of it (systemd), which has to run /run/machine/steps. `late_modules` are for the steps to load.

Two machines at once: start() them both, talk to them with wait_for("told X") (a guest's `tell X`) and order("Y") (a guest's
`order Y` waits for it), kill() one to have its host die, wait() for the other. An NVDIMM's file may be in several machines.

The guest's kernel is what linux-image-amd64 stands for, or another package that the suite names, downloaded once into the
user's cache folder; so is the QEMU of Debian's backports, for a suite that needs what Debian's own has not. KVM is never used.
Two processors always: with a single possible one, the emulation leaves atomic operations out.

Ends with one line of its result. Status: 0 nothing failed, 1 a step failed, 2 the command line or the build is wrong, 77 the
machine did not come up or ran out of time, or QEMU or the kernel cannot be had here.
"""
import argparse
import contextlib
import fcntl
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[2]
MIB = 1 << 20
GIB = 1 << 30

# Kernel modules by what a suite wants in its guest; what they depend on comes by itself.
BASE = ["virtio_pci", "9pnet_virtio", "9p", "overlay"]
NVDIMM = ["nfit", "nd_pmem", "dax_pmem", "device_dax"]
KMEM = ["kmem"]  # DAX devices as memory of the kernel
VOLATILE_CXL = ["cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "dax_cxl", "device_dax"]
CXL = ["cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "cxl_pmem", "nd_pmem", "dax_pmem", "device_dax"]
SOFT_RESERVED = ["dax_hmem", "device_dax"]  # see soft_reserved()


class Skip(Exception):
    """No result can be had here; the reason is its text."""


class Nvdimm:
    """A file as a persistent memory module. Without its label it should be a multiple of 16 MiB: 514 MiB gives 512."""

    def __init__(self, path, label_bytes=2 * MIB, more=""):
        self.path, self.label_bytes, self.more = path, label_bytes, more


class CxlMemory:
    """A file as the memory of a CXL type-3 device, behind a root port of its own: persistent with a file for its labels,
    volatile without (newer_emulator has that). Each access is emulated, and takes a microsecond or so."""

    def __init__(self, path, label_path=None):
        self.path, self.label_path = path, label_path


def soft_reserved(size, start):
    """Kernel parameter: this part of RAM becomes memory of specific purpose, a dynamic DAX region of the module dax_hmem.
    RAM of a machine with less than 2 GiB lies at its beginning."""
    return f"memmap={size:#x}%{start:#x}-1+0xefffffff"


def command(*arguments, seconds=300, **more):
    return subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=seconds,
                          check=False, **more)


def last_words(process):
    return " ".join((process.stderr + process.stdout).split())[-200:] or f"status {process.returncode}"


class Cache:
    """Debian packages, unpacked as far as guests need them, in a folder of the user's; a newer version cleans an older one."""

    def __init__(self):
        cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        self.folder = pathlib.Path(cache) / "marud-vm"

    @contextlib.contextmanager
    def locked(self, what):
        """One suite at a time. What cannot be had here, `what` is, ends the suite without a result."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / "lock", "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skip(f"no {what} in {self.folder}: {error}") from error

    def fetch(self, package, prefix, wanted, options=()):
        """The folder with those of the package's files that match `wanted`; `options` are apt's. Its older versions have
        folders that begin with `prefix`."""
        # Nothing is printed beside a copy.
        printed = command("apt-get", *options, "download", "--print-uris", package, cwd=self.folder)
        name = re.search(r" (\S+\.deb) ", printed.stdout)
        if not name:
            raise Skip(f"the package lists here know no {package} (apt-get update fetches them): {last_words(printed)}")
        folder = self.folder / name[1].removesuffix(".deb")
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=self.folder) as unfinished:
            got = command("apt-get", *options, "download", "-q", package, cwd=unfinished)
            archives = list(pathlib.Path(unfinished).glob("*.deb"))
            if got.returncode != 0 or not archives:
                raise Skip(f"{package} cannot be downloaded: {last_words(got)}")
            unpacked = pathlib.Path(unfinished, "unpacked")
            unpacked.mkdir()
            contents = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archives[0]], stdout=subprocess.PIPE)
            # tar says 2 about patterns that match nothing.
            subprocess.run(["tar", "-x", "-C", unpacked, "--wildcards", *wanted], stdin=contents.stdout,
                           stderr=subprocess.DEVNULL, timeout=300, check=False)
            if contents.wait(timeout=60) != 0 or not any(unpacked.iterdir()):
                raise Skip(f"{package} cannot be unpacked into {self.folder}")
            for older in self.folder.glob(prefix + "*"):
                shutil.rmtree(older, ignore_errors=True)
            unpacked.rename(folder)
        return folder

    def backports(self):
        """Options by which apt-get knows the backports to this machine's Debian and nothing else. They lie where Debian itself
        does, and are signed by the same keys; apt's own configuration stays as it is."""
        listed = command("apt-get", "indextargets", "--format",
                         "$(LABEL)|$(CODENAME)|$(REPO_URI)|$(SOURCESENTRY)", "Created-By: Packages").stdout
        # Updates and backports have names with a hyphen.
        debian = next((line.split("|") for line in listed.splitlines() if re.match(r"Debian\|[^|-]+\|", line)), None)
        if not debian:
            raise Skip("apt here has no source of Debian itself, whose backports are needed")
        _, release, archive, entry = debian
        signed = re.search(r"signed-by[:=]\s*(/[^\s\]]+)", pathlib.Path(entry.rpartition(":")[0]).read_text(encoding="utf-8"),
                           re.IGNORECASE)
        apt = self.folder / "apt"
        (apt / "sources").mkdir(parents=True, exist_ok=True)
        (apt / "lists/partial").mkdir(parents=True, exist_ok=True)
        (apt / "sources/backports.sources").write_text(
            f"Types: deb\nURIs: {archive}\nSuites: {release}-backports\nComponents: main\n" +
            (f"Signed-By: {signed[1]}\n" if signed else ""), encoding="utf-8")
        options = [option for value in ("Dir::Etc::sourcelist=/dev/null", f"Dir::Etc::sourceparts={apt / 'sources'}",
                                        f"Dir::State::lists={apt / 'lists'}", f"Dir::Cache={apt}")
                   for option in ("-o", value)]
        updated = command("apt-get", *options, "-q", "update")
        # Lists of an earlier time will do where there is no network now.
        if not any((apt / "lists").glob("*_Packages*")):
            raise Skip(f"the backports to Debian {release} cannot be had: {last_words(updated)}")
        return options


class Kernel:
    """Debian's kernel and a busybox; `package` stands for the newest build of one line of them."""

    # Drivers for what an emulated machine does not have are most of the archive.
    WANTED = ["./boot/vmlinuz*", "*/modules.builtin"] + [f"*/kernel/{part}" for part in (
        "drivers/acpi", "drivers/block", "drivers/char", "drivers/cxl", "drivers/dax", "drivers/nvdimm",
        "drivers/virtio", "fs", "lib", "mm", "net/9p", "crypto", "security")]

    def __init__(self, cache, package="linux-image-amd64"):
        with cache.locked("kernel"):
            # Names of older builds vanish from the archive.
            found = re.search(r"Depends: (linux-image-[0-9]+\.[0-9]+\.\S*)", command("apt-cache", "depends", package).stdout)
            if not found:
                raise Skip(f"the package lists here know no {package} (apt-get update fetches them)")
            line = re.match(r"linux-image-[0-9]+\.[0-9]+\.", found[1])[0]
            self.folder = cache.fetch(found[1], line, self.WANTED)
            self.busybox = cache.fetch("busybox-static", "busybox-static_", ["./bin"]) / "bin/busybox"
        self.image = next(self.folder.glob("boot/vmlinuz-*"))
        self.release = self.image.name.removeprefix("vmlinuz-")
        self.modules = {path.name.split(".")[0].replace("-", "_"): path for path in self.folder.glob("lib/modules/**/*.ko*")}
        builtin = next(self.folder.glob("lib/modules/*/modules.builtin")).read_text(encoding="utf-8")
        self.builtin = {pathlib.Path(line).stem.replace("-", "_") for line in builtin.splitlines()}

    def add_module(self, name, target, order):
        """Copies a module and before it those that it depends on."""
        name = name.replace("-", "_")
        if name in order or name in self.builtin:
            return
        if name not in self.modules:
            raise Skip(f"Linux {self.release} has no module {name}")
        path = self.modules[name]
        content = command_bytes("xz", "-dc", path) if path.suffix == ".xz" else path.read_bytes()
        for needed in re.findall(rb"\0depends=([^\0]*)", b"\0" + content):
            for one in filter(None, needed.decode().split(",")):
                self.add_module(one, target, order)
        pathlib.Path(target, name).write_bytes(content)
        order.append(name)


def command_bytes(*arguments):
    return subprocess.run(arguments, stdout=subprocess.PIPE, check=True, timeout=60).stdout


def installed_emulator(_cache):
    """Debian's own QEMU."""
    return ["qemu-system-x86_64"]


def newer_emulator(cache):
    """The QEMU of Debian's backports, run from where it was unpacked: the libraries that it needs are those of Debian's own."""
    wanted = ["./usr/bin/qemu-system-x86_64", "./usr/share/qemu", "./usr/share/seabios"]
    with cache.locked("newer QEMU"):
        options = cache.backports()
        program, data, firmware = (cache.fetch(package, package + "_", wanted, options)
                                   for package in ("qemu-system-x86", "qemu-system-data", "seabios"))
    emulator = [str(program / "usr/bin/qemu-system-x86_64"), "-L", str(data / "usr/share/qemu"),
                "-L", str(firmware / "usr/share/seabios")]
    said = command(*emulator, "--version")
    if said.returncode != 0:
        raise Skip(f"QEMU of the backports does not start here: {last_words(said)}")
    return emulator


class Machine:
    """One emulated machine: what it has is fixed when it is made; it may be started again and again."""

    def __init__(self, suite, name, modules=(), nvdimms=(), cxl=(), memory_mib=1024, kernel_parameters=(), qemu=(),
                 late_modules=(), root="", first_process="", processor="max", kernel=None):
        self.suite, self.name, self.modules, self.late_modules = suite, name, list(modules), list(late_modules)
        self.kernel = kernel or suite.kernel
        self.root, self.first_process = root, first_process
        self.folder = suite.folder / name
        self.folder.mkdir()
        self.lines, self.changed, self.process, self.ran_out = [], threading.Condition(), None, False
        self.kernel_parameters = list(kernel_parameters)
        self.arguments = ["-accel", "tcg,thread=multi", "-cpu", processor, "-smp", "2", "-nodefaults", "-display", "none",
                          "-no-reboot", "-virtfs",
                          "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
                          "-m", f"{memory_mib}M,slots={len(nvdimms) + 1},maxmem={memory_mib + 64 * 1024}M"]
        features = ["q35"] + (["nvdimm=on"] if nvdimms else []) + (["cxl=on"] if cxl else [])
        for number, nvdimm in enumerate(nvdimms):
            self.arguments += self.file_memory(f"nvdimm-memory{number}", nvdimm.path) + [
                "-device",
                f"nvdimm,id=nvdimm{number},memdev=nvdimm-memory{number},label-size={nvdimm.label_bytes}{nvdimm.more}"]
        if cxl:
            features.append("cxl-fmw.0.targets.0=cxl.0")
            features.append("cxl-fmw.0.size=4G")
            self.arguments += ["-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.0"]
            # One port more than devices: with a single port, QEMU 7.2 loses what is stored there.
            for port in range(len(cxl) + 1):
                self.arguments += ["-device", f"cxl-rp,port={port},bus=cxl.0,id=cxl-port{port},chassis=0,slot={port + 2}"]
            for number, one in enumerate(cxl):
                self.arguments += self.file_memory(f"cxl-memory{number}", one.path)
                kind = f"volatile-memdev=cxl-memory{number}"
                if one.label_path:
                    self.arguments += self.file_memory(f"cxl-label{number}", one.label_path)
                    kind = f"memdev=cxl-memory{number},lsa=cxl-label{number}"
                self.arguments += ["-device", f"cxl-type3,bus=cxl-port{number},{kind},id=cxl-device{number}"]
        self.arguments += ["-machine", ",".join(features), *qemu]

    @staticmethod
    def file_memory(name, path):
        return ["-object", f"memory-backend-file,id={name},share=on,mem-path={path},size={os.path.getsize(path)}"]

    def initial_files(self, steps, settings):
        """The first root of the guest: a busybox, modules, the steps."""
        first = self.folder / "first"
        shutil.rmtree(first, ignore_errors=True)
        for part in ("bin", "modules", "proc", "sys", "dev", "host", "own", "root", "payload"):
            (first / part).mkdir(parents=True)
        kernel = self.kernel
        shutil.copy(kernel.busybox, first / "bin/busybox")
        order = []
        for module in BASE + self.modules:
            kernel.add_module(module, first / "modules", order)
        (first / "modules/order").write_text("".join(f"{module}\n" for module in order), encoding="utf-8")
        loaded = len(order)
        for module in self.late_modules:
            kernel.add_module(module, first / "modules", order)
        (first / "modules/late").write_text("".join(f"{module}\n" for module in order[loaded:]), encoding="utf-8")
        settings = {"source": SOURCE, "build": self.suite.build, "machine": self.name, "root": self.root,
                    "first_process": self.first_process} | settings
        (first / "payload/settings").write_text(
            "".join(f"export {key}={shlex.quote(str(value))}\n" for key, value in settings.items()), encoding="utf-8")
        (first / "payload/steps").write_text(
            (HERE / "guest_steps.bash").read_text(encoding="utf-8") + steps + "\necho end >&3\n", encoding="utf-8")
        shutil.copy(HERE / "guest_init.sh", first / "init")
        (first / "init").chmod(0o755)
        listed = "\n".join(str(path.relative_to(first)) for path in sorted(first.rglob("*")))
        with open(self.folder / "first.cpio", "wb") as archive:
            subprocess.run([kernel.busybox, "cpio", "-o", "-H", "newc"], cwd=first, input=listed.encode(), stdout=archive,
                           stderr=subprocess.DEVNULL, check=True, timeout=60)
        shutil.rmtree(first)

    def start(self, steps, seconds=150, settings=None):
        """Boots. The machine is stopped after so many seconds, or when the suite has no time left."""
        if time.monotonic() > self.suite.deadline:
            raise Skip(f"no time was left for machine {self.name}")
        self.initial_files(steps, settings or {})
        self.lines, self.ran_out = [], False
        self.suite.running.append(self)
        # On a busy machine the emulated timer is late, which Linux takes for a broken one unless it is told not to look.
        parameters = " ".join(["console=ttyS0", "quiet", "panic=-1", "no_timer_check", *self.kernel_parameters])
        # The second serial line is QEMU's standard input and output: orders and results.
        with open(self.folder / "qemu.log", "wb") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", "5", *self.suite.emulator, *self.arguments, "-kernel", str(self.kernel.image),
                 "-initrd", str(self.folder / "first.cpio"), "-append", parameters,
                 "-serial", f"file:{self.folder / 'console'}",
                 "-chardev", "stdio,id=results,signal=off", "-serial", "chardev:results"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.deadline = min(time.monotonic() + seconds, self.suite.deadline)
        self.reader = threading.Thread(target=self.read, args=(self.process.stdout,), daemon=True)
        self.reader.start()
        return self

    def read(self, results):
        for line in results:
            with self.changed:
                self.lines.append(line.decode(errors="replace").rstrip("\r\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def wait_for(self, wanted):
        """Waits for a line of the guest that is `wanted`. A machine that ends before, or takes longer, ends the suite."""
        with self.changed:
            while wanted not in self.lines:
                if None in self.lines:
                    self.suite.finish(self)
                    raise Skip(f"machine {self.name} ended before \"{wanted}\"")
                if not self.changed.wait(max(0, self.deadline - time.monotonic())) and \
                        time.monotonic() >= self.deadline:
                    self.ran_out = True
                    raise Skip(f"machine {self.name} did not say \"{wanted}\" in time")

    def order(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def kill(self):
        """The host dies: no goodbye, nothing flushed. What it had said until then counts."""
        self.process.kill()
        self.process.wait()
        self.suite.finish(self, killed=True)

    def wait(self):
        """Waits for the end of the steps and returns the guest's lines."""
        try:
            self.process.wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.ran_out = True
            self.process.kill()
            self.process.wait()
        self.suite.finish(self)
        return self.lines

    def run(self, steps, seconds=150, settings=None):
        return self.start(steps, seconds, settings).wait()


class Suite:
    """The machines of one program, its temporary folder, and what it ends with."""

    def __init__(self, name, build, folder, seconds, kernel, emulator):
        self.name, self.build, self.folder = name, build, folder
        self.allow(seconds)
        self.running, self.lines, self.troubles = [], [], []
        self.cache = Cache()
        self.kernel = Kernel(self.cache, kernel)
        self.emulator = emulator(self.cache)

    def machine(self, name, **what):
        return Machine(self, name, **what)

    def file(self, name, size):
        path = self.folder / name
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def program(self, path):
        """A program of the build, which must be there."""
        found = self.build / path
        if not os.access(found, os.X_OK):
            print(f"{self.name}: {found} is not there; scripts/test builds it", file=sys.stderr)
            sys.exit(2)
        return found

    def allow(self, seconds):
        """Changes how long all machines together may take from now on."""
        self.deadline, self.seconds = time.monotonic() + seconds, seconds

    def check(self, name, holds, why=""):
        """A step outside of the machines."""
        self.add(f"ok {name}" if holds else f"FAILED {name} ({why})")

    def add(self, line):
        self.lines.append(line)
        print(line, flush=True)

    def finish(self, machine, killed=False):
        """Takes over what an ended machine said. Once for each start."""
        if machine not in self.running:
            return
        self.running.remove(machine)
        machine.process.wait()
        machine.reader.join(30)
        try:
            machine.process.stdin.close()
        except BrokenPipeError:
            pass  # what it was told last it did not hear
        lines = [line for line in machine.lines if line is not None]
        for line in lines:
            if line != "end" and not line.startswith("told "):
                self.add(line)
        if "end" not in lines and not killed:
            status = machine.process.returncode
            what = "ran out of time" if machine.ran_out else f"did not reach its end (QEMU's status {status})"
            self.troubles.append(f"machine {machine.name} of Linux {machine.kernel.release} {what}")
            self.show_console(machine)
        elif any(line.startswith("FAILED ") for line in lines):
            self.show_console(machine)

    @staticmethod
    def show_console(machine):
        for name in ("qemu.log", "console"):
            path = machine.folder / name
            if path.exists():
                said = path.read_text(encoding="utf-8", errors="replace").splitlines()
                print("\n".join(said[-200:]), file=sys.stderr, flush=True)

    def stop(self):
        for machine in list(self.running):
            machine.process.kill()
            machine.ran_out = True
            self.finish(machine, killed=True)

    def verdict(self):
        failed = [line.removeprefix("FAILED ") for line in self.lines if line.startswith("FAILED ")]
        skipped = [line for line in self.lines if line.startswith("skipped ")]
        counts = f"{sum(line.startswith('ok ') for line in self.lines)} steps"
        for what in ("passed", "skipped"):
            found = [re.fullmatch(rf" +(\d+) {what}", line) for line in self.lines]
            if any(found):
                counts += f", {sum(int(one[1]) for one in found if one)} tests {what}"
        counts += f", {len(skipped)} steps skipped" if skipped else ""
        out_of_time = [line for line in skipped if "out of time" in line]
        if failed:
            return 1, f"{self.name} failed on Linux {self.kernel.release}: {'; '.join(failed)}; {counts}"
        if self.troubles or out_of_time:
            return 77, f"{self.name} skipped: {'; '.join(self.troubles + out_of_time)}; before that {counts}"
        return 0, f"{self.name} passed on Linux {self.kernel.release}: {counts}"


def build_folder(text):
    folder = pathlib.Path(text).resolve()
    if not (folder / "daemon/marud").exists():
        print(f"found no daemon/marud in {text}, expected a folder that meson built; scripts/test builds one", file=sys.stderr)
        sys.exit(2)
    return folder


@contextlib.contextmanager
def turn():
    """One suite of this user at a time: each would like two processors."""
    with open(pathlib.Path(tempfile.gettempdir()) / f"marud-vm-{os.getuid()}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(name, run, description, seconds=450, add_arguments=None, needs_build=True, kernel="linux-image-amd64",
         emulator=installed_emulator):
    """A suite's main program. `run(suite)` starts machines; seconds bounds all of them together. `kernel` is the package that
    stands for their kernel, `emulator` is installed_emulator or newer_emulator."""
    parser = argparse.ArgumentParser(prog=f"scripts/vm-test {name}", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default=SOURCE / "build/test", help="a folder that meson built with tests")
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder, with everything the guests wrote")
    parser.add_argument("--seconds", type=int, default=seconds, help="the time for all machines together (%(default)s)")
    if add_arguments:
        add_arguments(parser)
    options = parser.parse_args()
    build = build_folder(options.build) if needs_build else pathlib.Path(options.build)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"marud-vm-{name}-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suite = None
    with turn():
        try:
            if platform.machine() != "x86_64":
                raise Skip("the guest is an x86_64 and shares its programs with this machine")
            if command(SOURCE / "scripts/install-packages", "vm", seconds=600).returncode != 0:
                raise Skip("QEMU cannot be installed here (Debian package qemu-system-x86)")
            suite = Suite(name, build, folder, options.seconds, kernel, emulator)
            suite.options = options
            run(suite)
            status, line = suite.verdict()
        # A program that takes longer than its bound, or a QEMU that ends while it is told something: no result, as with a Skip.
        except (Skip, subprocess.TimeoutExpired, BrokenPipeError) as skip:
            if suite:
                suite.stop()
                suite.troubles.append(str(skip))
                status, line = suite.verdict()
            else:
                status, line = 77, f"{name} skipped: {skip}"
        finally:
            if suite:
                suite.stop()
            if options.keep:
                print(f"kept: {folder}", file=sys.stderr)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    print(line, flush=True)
    sys.exit(status)
