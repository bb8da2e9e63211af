"""Tries the packages in a fresh Debian root: what they contain, installing them, using them, upgrading them, purging them.

  fresh_root.py --packages FOLDER --root TARBALL [--write]

The root holds a compiler, pkg-config, systemd, and what the packages depend on, and nothing else. It is made once, by
mmdebstrap, as TARBALL with a name for these dependencies; that alone needs a network. --write records the contents of the
packages in contents.txt, and does no more. in_root.sh runs inside, without a service manager; then in_service.sh in a second
root, under its own systemd.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RUNTIME = ("marud", "maru-eventd", "maru-tierd", "libmaru0", "libmaru-tokens0", "libmaru-layout0", "libmaru-adapters0",
           "libmaru-blend0", "libmaru-prefetch0", "libmaru-dev", "python3-maru")
TOOLS = ["curl", "gcc", "g++", "pkg-config", "systemd", "udev", "util-linux"]
# What installing, configuring and running anything leaves in a Debian system.
NOT_OURS = re.compile(r"^(proc|sys|dev|run|tmp|packages|var/(lib/dpkg|log|cache|lib/apt|tmp)(/|$)|"
                      r"etc/(passwd|group|g?shadow|subuid|subgid)-?$|etc/\.pwd\.lock$|etc/ld\.so\.cache$|etc/machine-id$|"
                      r"var/lib/systemd/deb-systemd-helper-enabled$|etc/systemd/system/multi-user\.target\.wants$)")


def output(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120, **more).stdout


def field(package, name):
    return output("dpkg-deb", "-f", package, name).strip()


def contents(packages):
    """Each entry of each package: its mode, owner, and name, or target; alike for every architecture and version."""
    lines = []
    for name in RUNTIME:
        triplet = output("dpkg-architecture", "-a" + field(packages[name], "Architecture"), "-qDEB_HOST_MULTIARCH").strip()
        for line in output("dpkg-deb", "-c", packages[name]).splitlines():
            mode, owner, _, _, _, path = line.split(None, 5)
            lines.append(f"{name} {mode} {owner} {path[1:].replace(triplet, 'TRIPLET')}")
    return sorted(lines)


def dependencies(packages):
    """Names of what the packages need besides each other; of alternatives the first."""
    needed = set()
    for package in packages.values():
        for one in filter(None, field(package, "Depends").split(",")):
            needed.add(one.split("|")[0].split()[0].split(":")[0])
    return sorted(needed - set(packages))


def find_packages(folder):
    """The packages of a folder by their names, without debug symbols; None when they are not what scripts/package builds."""
    packages = {field(path, "Package"): path for path in sorted(folder.glob("*.deb"))
                if not re.search(r"-dbgsym_", path.name)}
    return packages if set(packages) == set(RUNTIME) else None


def root_tarball(stem, packages):
    """The root as a tarball with a name for what it contains, made when it is not there. None: it cannot be made here."""
    include = sorted(set(TOOLS) | set(dependencies(packages)))
    name = hashlib.sha256(" ".join(include).encode()).hexdigest()[:8]
    tarball = stem.with_name(f"{stem.stem}-{name}.tar").resolve()
    return tarball if tarball.exists() or make_root(tarball, include) else None


def make_root(tarball, include):
    sources = sorted(map(str, [*pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"),
                               *(p for p in [pathlib.Path("/etc/apt/sources.list")] if p.exists())]))
    print(f"making {tarball} (minutes)", flush=True)
    tarball.parent.mkdir(parents=True, exist_ok=True)
    unfinished = tarball.with_suffix(".next.tar")
    made = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=" + ",".join(include),
                           "bookworm", unfinished, *sources], timeout=1500)
    if made.returncode == 0:
        unfinished.rename(tarball)
    else:
        unfinished.unlink(missing_ok=True)
    return made.returncode == 0


def snapshot(root):
    """Every file of the root that is nobody else's, with its mode, owner and bytes."""
    seen = {}
    for folder, folders, files in os.walk(root):
        relative = pathlib.Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not NOT_OURS.match(str(relative / name))]
        for name in folders + files:
            path, inner = pathlib.Path(folder, name), str(relative / name)
            if NOT_OURS.match(inner):
                continue
            status = path.lstat()
            body = (os.readlink(path) if path.is_symlink() else
                    hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
            seen[inner] = f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {body}"
    return seen


def differences(before, after):
    return ([f"left behind: {name}" for name in sorted(after.keys() - before.keys())] +
            [f"gone: {name}" for name in sorted(before.keys() - after.keys())] +
            [f"changed: {name}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name]])


def inside(root, step):
    """Runs a step of in_root.sh with processes of its own, all of which end with it. Returns whether it went well."""
    print(f"-- {step}", flush=True)
    script = ('mount -t proc proc "$0/proc" && mount -t tmpfs run "$0/run" && mount -t tmpfs tmp "$0/tmp" && '
              'exec chroot "$0" /bin/sh /packages/in_root.sh "$1"')
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    alone = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]
    return subprocess.run([*alone, "sh", "-c", script, str(root), step],
                          env=environment, stdin=subprocess.DEVNULL, timeout=300).returncode == 0


TRY_UNIT = """
[Unit]
FailureAction=exit-force
FailureActionExitStatus=1
SuccessAction=exit-force
SuccessActionExitStatus=0
[Service]
Type=oneshot
TimeoutStartSec=400
ExecStart=/bin/sh /packages/in_service.sh
StandardOutput=file:/packages/said
StandardError=inherit
"""


def under_systemd(root):
    """What went wrong when marud was a service of the root's own systemd; None when that cannot be started here."""
    hierarchies = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
                   if line.split(" - ")[1].startswith("cgroup2 ")]
    if not hierarchies:
        return None
    group = pathlib.Path(hierarchies[0], f"maru-package-test-{os.getpid()}")
    unit = root / "etc/systemd/system/maru-try.service"
    unit.write_text(TRY_UNIT)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / unit.name).symlink_to("../" + unit.name)
    try:
        group.mkdir()
    except OSError:
        return None
    said = root / "packages/said"
    try:
        status = subprocess.run(["sh", HERE / "boot_root.sh", root, group], stdin=subprocess.DEVNULL, timeout=500).returncode
    except subprocess.TimeoutExpired:
        status = "none in 500 s"
    finally:
        for inner in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            inner.rmdir()
        group.rmdir()
    if not said.exists():
        return None
    print(said.read_text(errors="replace"), end="")
    return [f"in_service.sh failed (status {status})"] if status != 0 else []


def next_version(package, folder):
    """The same package as the next version would be, for an upgrade."""
    with tempfile.TemporaryDirectory(prefix="maru-repack-") as name:
        subprocess.run(["dpkg-deb", "-R", package, name], check=True)
        control = pathlib.Path(name, "DEBIAN/control")
        version = field(package, "Version")
        control.write_text(re.sub(rf"(^Version: |\(= ){re.escape(version)}(?=\)|$)",
                                  lambda found: found.group(0) + "+next", control.read_text(), flags=re.MULTILINE))
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", name, folder], check=True, stdout=subprocess.DEVNULL)


def unpack(root, tarball, packages):
    subprocess.run(["tar", "-x", "-p", "--numeric-owner", "-C", root, "-f", tarball], check=True)
    stage = root / "packages"
    (stage / "next").mkdir(parents=True)
    for package in packages.values():
        shutil.copy(package, stage)
        next_version(package, stage / "next")
    for source in (HERE / "in_root.sh", HERE / "in_service.sh", HERE / "keep_block.c", HERE.parent / "api/use_c.c",
                   HERE.parent / "api/use_cpp.cc", HERE.parents[1] / "docs/examples/python/ten_lines.py"):
        shutil.copy(source, stage)


def try_packages(root):
    """What went wrong, in words."""
    fresh = snapshot(root)
    for step in ("install", "use"):
        if not inside(root, step):
            return [f"{step} failed"]
    installed = snapshot(root)
    for step in ("upgrade", "use"):
        if not inside(root, step):
            return [f"{step} failed (the upgrade, or what came after it)"]
    wrong = ["upgrade: " + text for text in differences(installed, snapshot(root))
             if not re.match(r"changed: (etc/marud/marud\.toml|var/lib/marud.*|.*/doc/.*)$", text)]
    if not inside(root, "purge"):
        return [*wrong, "purge failed"]
    return wrong + ["purge: " + text for text in differences(fresh, snapshot(root))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--packages", required=True, type=pathlib.Path)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    packages = find_packages(arguments.packages)
    if packages is None:
        there = sorted(path.name for path in arguments.packages.glob("*.deb"))
        print(f"found {there} in {arguments.packages}, expected {sorted(RUNTIME)}; scripts/package builds them")
        return 2
    found, record = contents(packages), HERE / "contents.txt"
    if arguments.write:
        record.write_text("\n".join(found) + "\n")
        return 0
    wanted = record.read_text().splitlines()
    wrong = ([f"contents: {line} is new" for line in sorted(set(found) - set(wanted))] +
             [f"contents: {line} is missing" for line in sorted(set(wanted) - set(found))])

    if os.geteuid() != 0:
        print("package test skipped: only root can install packages in a root of their own")
        return 77
    tarball = root_tarball(arguments.root, packages)
    if tarball is None:
        print("package test skipped: mmdebstrap cannot make a root here")
        return 77
    with tempfile.TemporaryDirectory(prefix="maru-root-") as root:
        unpack(pathlib.Path(root), tarball, packages)
        wrong += try_packages(pathlib.Path(root))
    print("-- under systemd", flush=True)
    with tempfile.TemporaryDirectory(prefix="maru-root-") as root:
        unpack(pathlib.Path(root), tarball, packages)
        in_service = under_systemd(pathlib.Path(root))
    wrong += in_service or []
    print("\n".join(wrong))
    print(f"package test failed: {len(wrong)} wrong" if wrong else
          f"package test passed: {len(found)} entries, installed, used, upgraded, used, purged; under systemd: " +
          ("the same, with the block kept" if in_service is not None else "NOT TRIED, it cannot be started here"))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
