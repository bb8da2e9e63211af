"""Holds the units to each other and to the configurations that they come with: units_agree.py SOURCE_TREE

The socket is where marud.toml says, and belongs to the user of the service, who has its folder; the example of several pools
opens the folders of its files; packages have udev look at devices that are there. Without systemd."""
import pathlib
import re
import sys
import tomllib


def settings(path):
    """The last value of each key, all sections together: no key is in two of them here."""
    return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE))


def main():
    root = pathlib.Path(sys.argv[1])
    service, listener = settings(root / "systemd/marud.service"), settings(root / "systemd/marud.socket")
    drop_in = settings(root / "docs/examples/systemd/pools.conf")
    lists = {"Requires", "Wants", "After", "ReadWritePaths", "DeviceAllow"}  # to which a drop-in adds
    wrong = []

    def same(what, found, where, expected):
        if found != expected:
            wrong.append(f"{what} is {found!r}, and {where} has {expected!r}")

    listens = listener.get("ListenSequentialPacket")
    for name in ("systemd/marud.toml", "docs/examples/systemd/marud.toml"):
        config = tomllib.loads((root / name).read_text())["daemon"]
        same("ListenSequentialPacket= of marud.socket", listens, f"socket of {name}", config["socket"])
        same("StateDirectory= of marud.service", "/var/lib/" + service["StateDirectory"], f"state_dir of {name}",
             config["state_dir"])
    same("the folder of marud.socket", str(pathlib.Path(listens).parent), "RuntimeDirectory= of marud.service",
         "/run/" + service["RuntimeDirectory"])
    # Without the unit the folders are the same: for other service managers, and by hand.
    made = dict(re.findall(r"^d (\S+) (\d+ \S+ \S+) -$", (root / "systemd/tmpfiles.d/marud.conf").read_text(), re.MULTILINE))
    owner = f"{service['User']} {service['Group']}"
    same("the folders of tmpfiles.d/marud.conf", made, "marud.service",
         {"/run/" + service["RuntimeDirectory"]: f"{service.get('RuntimeDirectoryMode', '0755')} {owner}",
          "/var/lib/" + service["StateDirectory"]: f"{service.get('StateDirectoryMode', '0755')} {owner}"})
    # A folder that goes with the service would take the socket along that systemd still listens on.
    same("RuntimeDirectoryPreserve= of marud.service", service["RuntimeDirectoryPreserve"], "marud.socket, which needs it,",
         "yes")
    for kind in ("User", "Group"):
        same(f"Socket{kind}= of marud.socket", listener[f"Socket{kind}"], "marud.service", service[kind])

    provision = settings(root / "systemd/marud-provision.service")
    same("the configuration that marud-provision.service reads", provision["ExecStart"].split()[2], "marud.service",
         service["ExecStart"].split()[2])
    generator = (root / "systemd/system-generators/marud-generator").read_text()
    same("what marud-generator reads, and with what", re.findall(r"^\w+=\$\{MARUD_\w+:-(.*)\}$", generator, re.MULTILINE),
         "ExecStart= of marud.service", [service["ExecStart"].split()[2], service["ExecStart"].split()[0]])
    # Every start of marud waits for this unit: what takes long is for the program to decide.
    for key in ("ExecStartPre", "ExecStartPost"):
        same(f"{key}= of marud-provision.service", provision.get(key), "marud, which has no time for it,", None)
    # Both read a configuration that names users and groups.
    for name, wanted, after in (("marud.service", {"marud-provision.service"}, {"marud-provision.service"}),
                                ("marud-provision.service", set(), set())):
        text = (root / "systemd" / name).read_text()
        same(f"Wants= of {name}", set(re.findall("^Wants=(.*)$", text, re.MULTILINE)), "marud, which cannot make devices,",
             wanted)
        same(f"After= of {name}", set(re.findall("^After=(.*)$", text, re.MULTILINE)), "what it needs before",
             after | {"nss-user-lookup.target"})
    # What a reload looks at is what the service reads.
    reloads = re.findall("^ExecReload=(.*)$", (root / "systemd/marud.service").read_text(), re.MULTILINE)
    same("the first ExecReload= of marud.service", reloads[0], "ExecStart=, with --check-config,",
         service["ExecStart"] + " --check-config")
    same("StandardOutput= of marud.service", service.get("StandardOutput"), 'a reload, whose check says "OK" there,', "null")
    same("StandardError= of marud.service", service.get("StandardError"), "the log", "journal")
    # A unit that failed for good loses its descriptor store, and with it the pools in memory.
    same("StartLimitIntervalSec= of marud.service", service.get("StartLimitIntervalSec"), "its descriptor store", "0")
    same("Requires= of marud.service", service.get("Requires"), "a marud that comes back after a crash", None)
    if not service.get("RestartSec"):
        wrong.append("marud.service has no RestartSec=: a marud that cannot start would be started ten times a second")

    # The rules name a user that the package makes, and are for devices that come; those that are there have to be named anew.
    subsystem = re.search(r'^SUBSYSTEM=="(\w+)"', (root / "systemd/udev/60-marud.rules").read_text(), re.MULTILINE).group(1)
    for name, start in (("debian/marud.postinst", "#DEBHELPER#"), ("packaging/rpm/marud.spec", "%systemd_post ")):
        steps = ["systemd-sysusers marud.conf", f"udevadm trigger --subsystem-match={subsystem} --action=change",
                 "udevadm settle", start]
        if name.endswith(".spec"):  # debhelper writes this step of the other one
            steps.insert(1, "systemd-tmpfiles --create marud.conf")
        found = [(root / name).read_text().find(step) for step in steps]
        if -1 in found or found != sorted(found):
            wrong.append(f"{name} does not have udev apply 60-marud.rules to devices that are there before marud is started: "
                         f"expected, in this order, {steps}")

    # Without the rules the devices are root's again, not at the next boot only.
    for name in ("debian/marud.postrm", "packaging/rpm/marud.spec"):
        text = (root / name).read_text().partition("%postun")[2] or (root / name).read_text()
        steps = ["for device in /dev/dax*", 'chown root:root "$device"', 'chmod 0600 "$device"']
        if any(step not in text for step in steps):
            wrong.append(f"{name} does not give devices back to root when the rules are gone: expected {steps}")

    # A device that goes is one pool's trouble, and none of the others'.
    devices = settings(root / "docs/examples/systemd/dax.conf")
    same("Wants= of dax.conf", devices.get("Wants"), "its After=", devices.get("After"))
    same("Requires= of dax.conf", devices.get("Requires"), "pools on other devices", None)
    for name in ("pools.conf", "dax.conf"):
        # A copy of it would stay as it is when the unit gets better.
        if again := (settings(root / "docs/examples/systemd" / name).keys() & service.keys()) - lists:
            wrong.append(f"{name} says again what marud.service says: {', '.join(sorted(again))}")
    opened = drop_in["ReadWritePaths"].split()
    pools = tomllib.loads((root / "docs/examples/systemd/marud.toml").read_text())["pool"]
    for pool in pools:
        if set(pool.get("users", [])) & {"nobody", 65534}:
            wrong.append(f"pool {pool['name']} of the example is for nobody, whose processes are those of many services")
        folder = str(pathlib.Path(pool["path"]).parent) if "path" in pool else None
        if folder and folder not in opened:
            wrong.append(f"pool {pool['name']} of the example lies in {folder}, and ReadWritePaths= of pools.conf has {opened}")
    print("\n".join(wrong) or f"marud.socket, marud.service, their configuration and the example of {len(pools)} pools agree")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
