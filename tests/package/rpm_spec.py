"""Compares packaging/rpm/marud.spec with what was said first: the version with meson's, the files with what the Debian packages
contain (contents.txt), what a build needs with debian/control. Without rpm. rpm_spec.py SOURCE_TREE"""
import fnmatch
import pathlib
import re
import sys

SPEC = "packaging/rpm/marud.spec"
# The same packages under the names of both worlds.
PACKAGES = {"marud": "marud", "maru-eventd": "maru-eventd", "libmaru0": "libmaru", "libmaru-adapters0": "libmaru-adapters",
            "libmaru-blend0": "libmaru-blend", "libmaru-layout0": "libmaru-layout",
            "libmaru-prefetch0": "libmaru-prefetch", "maru-tierd": "maru-tierd",
            "libmaru-tokens0": "libmaru-tokens", "libmaru-dev": "libmaru-devel"}
PACKAGES_DEBIAN_ALONE = {"python3-maru"}  # pip builds it elsewhere
BUILD_NEEDS = {
    "dh-sequence-installsysusers": "systemd-rpm-macros", "libcurl4-openssl-dev": "libcurl-devel", "libssl-dev": "openssl-devel",
    "libcxl-dev": "cxl-devel", "libdaxctl-dev": "daxctl-devel",
    "libexpected-dev": "expected-devel", "libhiredis-dev": "hiredis-devel",
    "libmicrohttpd-dev": "libmicrohttpd-devel", "libndctl-dev": "ndctl-devel",
    "libnuma-dev": "numactl-devel", "libspdlog-dev": "spdlog-devel", "libtomlplusplus-dev": "tomlplusplus-devel",
    "libprotozero-dev": "protozero-devel",
    "libnats-dev": "cnats-devel", "libzmq3-dev": "zeromq-devel",
    "liburing-dev": "liburing-devel", "libxxhash-dev": "xxhash-devel", "meson": "meson",
    "nlohmann-json3-dev": "json-devel", "pkg-config": "pkgconf-pkg-config", "scdoc": "scdoc",
    "systemtap-sdt-dev": "systemtap-sdt-devel",
}
RPM_ALONE = {"gcc-c++"}  # Debian's builds have a compiler
DEBIAN_ALONE = {"debhelper-compat", "dh-python", "pybind11-dev", "python3-dev"}
MACROS = {
    "_prefix": "/usr", "_bindir": "/usr/bin", "_libdir": "/usr/lib/TRIPLET", "_includedir": "/usr/include",
    "_mandir": "/usr/share/man", "_sysconfdir": "/etc", "_unitdir": "/lib/systemd/system",
    "_systemdgeneratordir": "/lib/systemd/system-generators",
    "_sysusersdir": "/usr/lib/sysusers.d", "_tmpfilesdir": "/usr/lib/tmpfiles.d",
    "_udevrulesdir": "/lib/udev/rules.d", "_libexecdir": "/usr/libexec",
    "_datadir": "/usr/share",
}


def expanded(text, macros):
    out = re.sub(r"%\{(\w+)\}", lambda found: macros.get(found.group(1), found.group(0)), text)
    if "%{" in out:
        raise SystemExit(f"{SPEC}: {text}: a macro that this test does not know; give it to MACROS")
    return out


def file_lists(spec, macros):
    """The patterns of each package's %files, and what of the sources is its %doc."""
    patterns, documents = {}, {}
    for title, body in re.findall(r"^%files(.*)\n((?:(?!%(?:files|changelog)).*\n)*)", spec, re.MULTILINE):
        name = title.replace("-n", "").strip() or "marud"
        patterns[name], documents[name] = [], set()
        for line in filter(None, map(str.strip, body.splitlines())):
            if line.startswith("%doc "):
                documents[name] |= set(line.split()[1:])
            elif not line.startswith(("%license", "%dir")):
                pattern = expanded(re.sub(r"^%config\S* ", "", line), macros)
                patterns[name].append(pattern + "*" if pattern.endswith("/") else pattern)
    return patterns, documents


def debian_files(root):
    files, documents = {}, {}
    for line in (root / "tests/package/contents.txt").read_text().splitlines():
        package, mode, _, path = line.split(" -> ")[0].split(None, 3)
        path = path.replace("/zsh/vendor-completions/", "/zsh/site-functions/")  # Debian's own place
        if not mode.startswith("d") and not path.startswith("/usr/share/doc/"):
            files.setdefault(package, set()).add(path)
    for package in files:
        lists = [root / f"debian/{package}.{kind}" for kind in ("docs", "examples")]
        documents[package] = {name for listed in lists if listed.exists() for name in listed.read_text().split()}
    return files, documents


def compare_files(spec, root, version):
    patterns, documents = file_lists(spec, {**MACROS, "version": version})
    files, debian_documents = debian_files(root)
    wrong = []
    if set(patterns) != set(PACKAGES.values()):
        wrong.append(f"{SPEC} has the packages {sorted(patterns)}, expected {sorted(PACKAGES.values())}")
        return wrong
    if set(files) != set(PACKAGES) | PACKAGES_DEBIAN_ALONE:
        wrong.append(f"Debian has the packages {sorted(files)}, expected {sorted(set(PACKAGES) | PACKAGES_DEBIAN_ALONE)}")
        return wrong
    for debian, rpm in PACKAGES.items():
        for path in sorted(files[debian]):
            takers = [pattern for pattern in patterns[rpm] if fnmatch.fnmatchcase(path, pattern)]
            if len(takers) != 1:
                wrong.append(f"%files of {rpm}: {len(takers)} lines for {path} of {debian}, expected one: {takers}")
        for pattern in patterns[rpm]:
            if not any(fnmatch.fnmatchcase(path, pattern) for path in files[debian]):
                wrong.append(f"%files of {rpm}: {pattern} is nothing that {debian} has (tests/package/contents.txt)")
        if documents[rpm] != debian_documents[debian]:
            wrong.append(f"%doc of {rpm}: found {sorted(documents[rpm])}, "
                         f"debian/{debian}.docs and .examples have {sorted(debian_documents[debian])}")
    return wrong


def compare_needs(spec, control):
    """Names, and versions where one is named, both ways."""
    needed = re.search(r"^Build-Depends: (.*?)^\w", control, re.MULTILINE | re.DOTALL).group(1)
    debian = {}
    for one in needed.split(","):
        name, _, version = one.strip().partition(" ")
        if name not in DEBIAN_ALONE:
            debian[name] = version.strip("()").strip()
    rpm = {name: version.strip() for name, version in re.findall(r"^BuildRequires: +(\S+)(.*)$", spec, re.MULTILINE)}
    wrong = [f"BuildRequires: lacks {BUILD_NEEDS.get(name, 'what is called ' + name + ' in Debian; see BUILD_NEEDS')}"
             for name in sorted(debian) if BUILD_NEEDS.get(name) not in rpm]
    wrong += [f"BuildRequires: {name} is nothing that debian/control needs"
              for name in sorted(rpm.keys() - RPM_ALONE - {BUILD_NEEDS.get(name) for name in debian})]
    wrong += [f"BuildRequires: {BUILD_NEEDS[name]} {rpm[BUILD_NEEDS[name]]}, Debian: {name} {version}"
              for name, version in sorted(debian.items())
              if rpm.get(BUILD_NEEDS.get(name)) is not None and rpm[BUILD_NEEDS[name]] != version]
    return wrong


def main():
    root = pathlib.Path(sys.argv[1])
    spec = (root / SPEC).read_text()
    wrong = []
    version = re.search(r"^Version: +(\S+)", spec, re.MULTILINE).group(1)
    meson = re.search(r"^  version: '([^']*)'", (root / "meson.build").read_text(), re.MULTILINE).group(1)
    logged = re.search(r"^%changelog\n\*.* - (\S+)-\d", spec, re.MULTILINE).group(1)
    if not version == meson == logged:
        wrong.append(f"one version was expected, found {meson} in meson.build, {version} in {SPEC}, {logged} in its changelog")
    # A package that is installed together with systemd itself, as into a new root, needs it before its scripts run.
    for script in ("post", "preun", "postun"):
        if f"Requires({script}): systemd\n" not in spec:
            wrong.append(f"%{script} uses systemd, expected Requires({script}): systemd")
    wrong += compare_files(spec, root, version)
    wrong += compare_needs(spec, (root / "debian/control").read_text().split("\n\n")[0] + "\nEnd:")
    # Units, users and configuration that a Debian package takes out of the sources have to be installed by hand here, too.
    lists = [root / f"debian/{name}.install" for name in ("marud", "maru-eventd")]
    for line in [line for listed in lists for line in listed.read_text().splitlines()]:
        source = line.split()[0]
        installed = rf"^install .*\b{re.escape(source)}(/\*)?(\s|$)"
        if not source.startswith("usr/") and not re.search(installed, spec, re.MULTILINE):
            wrong.append(f"%install of {SPEC} does not install {source}, as the Debian package does")
    print("\n".join(wrong) or f"{SPEC}: version {version}, files and needs as in Debian's packages")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
