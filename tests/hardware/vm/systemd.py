#!/usr/bin/env python3
"""Tries the packages under a real systemd and udev: a Debian system of its own in an emulated machine.

First machine: the packages are installed while it runs, then tests/package/in_service.sh: start, reload, kill, watchdog,
restart, upgrade under a client, marud.socket, memory limits that the kernel enforces, purge. Second machine: they were
installed before, and the pool lies on an NVDIMM whose driver comes late: the enabled service is started at boot, waits for
the device, gets it from udev, and keeps what it holds; then a device that marud-provision makes when the service starts.

The packages are those of a folder, built by scripts/package. The system is made once, beside them, by mmdebstrap; that alone
needs a network and root.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import machine

sys.path.insert(0, str(machine.SOURCE / "tests/package"))
import fresh_root  # noqa: E402

# The steps as a service, for who was booted by systemd.
STEPS_UNIT = """
[Unit]
Description=Steps of a test
After=basic.target
[Service]
StandardInput=null
StandardOutput=file:/dev/ttyS0
StandardError=inherit
TimeoutStartSec=infinity
ExecStart=/bin/bash /run/machine/steps
ExecStopPost=/bin/systemctl poweroff --force --force
"""

MAKE = r"""
made() { ndctl create-namespace -f -m devdax -a 2M -e namespace0.0; }
step "a device is made" 60 made
"""

COMMON = r"""
main_pid() { systemctl show -p MainPID --value marud; }
runs() { systemctl is-active -q marud; }
log() { journalctl --sync; journalctl --no-pager -o cat -u marud; }
# What a step that failed leaves to look at.
trouble() { systemctl --no-pager status marud; systemctl --no-pager list-jobs; journalctl --no-pager -n 60; }
why() { step "$@" || trouble; }
export MARU_SOCKET=/run/marud/marud.sock
exposure() {
  systemd-analyze security --no-pager marud.service | grep -o 'Overall exposure level for .*: [0-9.]*'
  systemd-analyze security --no-pager --threshold=12 marud.service >/dev/null
}
killed() {
  local old
  old=$(main_pid)
  systemctl kill -s KILL marud
  comes_back() { runs && [ "$(main_pid)" != "$old" ] && [ "$(main_pid)" != 0 ]; }
  poll 300 comes_back
}
"""

INSTALLED_WHILE_IT_RUNS = COMMON + r"""
boots() { poll 300 systemctl is-active -q multi-user.target; }
why "systemd boots" 400 boots
why "installed, started, reloaded, killed, stalled, upgraded, limited, purged" 800 sh /packages/in_service.sh
show
"""

BOOTED_WITH_IT = COMMON + r"""
# The driver is not there yet: the service is wanted, and waits.
waits() {
  waiting() { systemctl list-jobs --no-legend | grep -q 'dev-dax0.0.device .*running'; }
  poll 300 waiting
  systemctl list-jobs --no-legend --no-pager
  systemctl list-jobs --no-legend | grep -q 'marud.service *start *waiting'
  [ "$(systemctl show -p ActiveState --value marud)" = inactive ]
  # Nobody wrote a drop-in: the generator did.
  systemctl --no-pager cat marud | grep -A 9 '^# /run/systemd/generator/marud.service.d/50-devices.conf$' |
    grep '^Wants=dev-dax0.0.device$'
  [ ! -e /dev/dax0.0 ]
}
driver_comes() {
  for module in $(cat /run/machine/modules/late); do /run/machine/busybox insmod "/run/machine/modules/$module"; done
  poll 300 runs
  [ "$(systemctl show -p NRestarts --value marud)" = 0 ]
}
udev() {
  stat -c '%U %G %a' /dev/dax0.0
  [ "$(stat -c '%U %G %a' /dev/dax0.0)" = 'marud marud 660' ]
  udevadm info --query property --name /dev/dax0.0 | grep -q '^TAGS=.*:systemd:'
  systemctl is-active -q dev-dax0.0.device
}
# A device that was there before the package is marud's when it is installed.
installed_later() {
  chown root:root /dev/dax0.0
  chmod 0600 /dev/dax0.0
  dpkg -i /packages/marud_*.deb
  poll 300 udev
}
privileges() {
  [ "$(stat -c %U "/proc/$(main_pid)")" = marud ]
  [ "$(sed -n 's/^CapBnd:\t//p' "/proc/$(main_pid)/status")" = 0000000000000000 ]
}
kept() {
  /packages/keep_block store
  killed
  /packages/keep_block find
  systemctl restart marud
  /packages/keep_block find
  # A stop gives memory up, and no device.
  systemctl stop marud
  systemctl start marud
  /packages/keep_block find
}
# Made by root, opened by marud: udev has given it over in between.
provisioned() {
  cat >>/etc/marud/marud.toml <<'TOML'
[[pool]]
name = "made"
backend = "dax"
device = "/dev/dax1.0"
lanes = 16

[[provision]]
name = "kv"
kind = "namespace"
region = "region1"
TOML
  said() { journalctl --sync; journalctl --no-pager -o cat -u marud-provision; }
  # marud waits for the device while the other service makes it.
  systemctl daemon-reload
  systemctl --no-pager show -p Wants marud | grep -q 'dev-dax1.0.device'
  systemctl restart marud || { said; log | tail -n 30; return 1; }
  said | grep -q 'done: 2 steps'
  [ "$(stat -c %U /dev/dax1.0)" = marud ]
  marudctl --pool made status
  systemctl restart marud
  said | grep -q 'kv: namespace.* is there'
  /packages/keep_block find
}

why "an enabled service waits for its device" 400 waits
why "the driver comes, and the service starts" 400 driver_comes
why "udev gives the device to marud and to systemd" 400 udev
why "installing gives devices that are there to marud" 400 installed_later
why "marud runs without privileges" 400 privileges
why "killed, restarted, stopped: the device keeps the block" 400 kept
why "exposure" 400 exposure
show
why "devices are made when the service starts" 400 provisioned
"""

CONFIGURATION = """
[daemon]
socket = "/run/marud/marud.sock"
state_dir = "/var/lib/marud"
[[pool]]
name = "default"
backend = "dax"
device = "/dev/dax0.0"
page_bytes = "64KiB"
lanes = 16
"""


def prepare(root):
    """Lets the system of a folder boot, and run the steps."""
    units = root / "etc/systemd/system"
    (units / "maru-steps.service").write_text(STEPS_UNIT)
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "maru-steps.service").symlink_to("../maru-steps.service")
    # The console is the test's, and a machine without an id would be one that boots for the first time.
    (units / "serial-getty@ttyS0.service").symlink_to("/dev/null")
    (root / "etc/machine-id").write_text("6d617275000000000000000000000001\n")


def install(root):
    """What an administrator does to an image: the packages, and a pool on a device."""
    if not fresh_root.inside(root, "install"):
        return False
    subprocess.run(["chroot", root, "sh", "-c",
                    "gcc -std=c99 -o /packages/keep_block /packages/keep_block.c $(pkg-config --cflags --libs maru)"],
                   check=True, timeout=120)
    (root / "etc/marud/marud.toml").write_text(CONFIGURATION)
    return True


def add_arguments(parser):
    parser.add_argument("--debs", default=machine.SOURCE / "build/package", type=pathlib.Path, metavar="FOLDER",
                        help="where the packages are (%(default)s)")


def boot(suite, name, root, steps, **what):
    prepare(root)
    # On a busy machine the emulated timer is late, which Linux takes for a broken one, and units wait longer for devices.
    parameters = ["no_timer_check", "systemd.default_timeout_start_sec=600"]
    # What does not come at all would be the product's fault, so what is late has failed.
    suite.machine(name, root=root, first_process="/lib/systemd/systemd", kernel_parameters=parameters,
                  **what).run(steps, suite.seconds, {"late": "FAILED"})


def install_while_it_runs(suite, root):
    boot(suite, "fresh", root, INSTALLED_WHILE_IT_RUNS, memory_mib=1536)


def boot_with_it(suite, root):
    suite.check("installed in an image", install(root), "see above")
    nvdimms = [machine.Nvdimm(suite.file(f"nvdimm{number}.img", size * machine.MIB)) for number, size in enumerate((130, 258))]
    suite.machine("maker", modules=machine.NVDIMM, nvdimms=nvdimms[:1]).run(MAKE, seconds=100)
    boot(suite, "device", root, BOOTED_WITH_IT, nvdimms=nvdimms, late_modules=machine.NVDIMM)


def run(suite):
    packages = fresh_root.find_packages(suite.options.debs)
    if packages is None:
        raise machine.Skip(f"the packages are not in {suite.options.debs}; scripts/package builds them")
    if os.geteuid() != 0:
        raise machine.Skip("only root can make a Debian system of its own")
    machine.command(machine.SOURCE / "scripts/install-packages", "package-test", seconds=600)
    tarball = fresh_root.root_tarball(machine.SOURCE / "build/package-root.tar", packages)
    if tarball is None:
        raise machine.Skip("mmdebstrap cannot make a Debian system here")
    for part in (install_while_it_runs, boot_with_it):
        with tempfile.TemporaryDirectory(prefix="root-", dir=suite.folder) as name:
            root = pathlib.Path(name)
            root.chmod(0o755)
            fresh_root.unpack(root, tarball, packages)
            suite.allow(suite.seconds)  # for each part, not for what it waited for
            try:
                part(suite, root)
            except subprocess.TimeoutExpired as late:
                raise machine.Skip(f"this machine is too slow: {late}") from late


if __name__ == "__main__":
    machine.main("systemd", run, __doc__, seconds=900, add_arguments=add_arguments, needs_build=False)
