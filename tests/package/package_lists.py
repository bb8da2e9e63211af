"""Compares what debian/ repeats with where it was said first: the exported functions, the version, the packages that a build
needs, the packages that the test of packages tries, and the documents that README names. package_lists.py SOURCE_TREE"""
import pathlib
import re
import sys


def difference(what, here, names, there, others):
    return ([f"{what} {name}: in {here} and not in {there}" for name in sorted(names - others)] +
            [f"{what} {name}: in {there} and not in {here}" for name in sorted(others - names)])


def main():
    root = pathlib.Path(sys.argv[1])
    text = {name: (root / name).read_text() for name in (
        "debian/changelog", "debian/control", "debian/libmaru0.symbols", "debian/libmaru-adapters0.symbols",
        "debian/libmaru-blend0.symbols",
        "debian/libmaru-layout0.symbols",
        "debian/libmaru-prefetch0.symbols", "debian/libmaru-tokens0.symbols",
        "tests/package/fresh_root.py", "include/maru/maru.h", "libmaru/libmaru.map", "libmaru/adapters/libmaru-adapters.map",
        "libmaru/blend/libmaru-blend.map", "libmaru/layout/libmaru-layout.map",
        "libmaru/prefetch/libmaru-prefetch.map", "libmaru/tokens/libmaru-tokens.map", "meson.build",
        "scripts/install-packages")}

    wrong, symbols = [], set()
    for version_script, of_package in (("libmaru/libmaru.map", "debian/libmaru0.symbols"),
                                       ("libmaru/adapters/libmaru-adapters.map", "debian/libmaru-adapters0.symbols"),
                                       ("libmaru/blend/libmaru-blend.map", "debian/libmaru-blend0.symbols"),
                                       ("libmaru/layout/libmaru-layout.map", "debian/libmaru-layout0.symbols"),
                                       ("libmaru/prefetch/libmaru-prefetch.map", "debian/libmaru-prefetch0.symbols"),
                                       ("libmaru/tokens/libmaru-tokens.map", "debian/libmaru-tokens0.symbols")):
        exported = set(re.findall(r"^    (maru_\w+);", text[version_script], re.MULTILINE))
        listed = set(re.findall(r"^ (maru_\w+)@MARU_(?:ADAPTERS_|LAYOUT_|TOKENS_|BLEND_|PREFETCH_)?0 ", text[of_package],
                                re.MULTILINE))
        wrong += difference("function", version_script, exported, of_package, listed)
        symbols |= listed

    versions = {
        "meson.build": re.search(r"^  version: '([^']*)'", text["meson.build"], re.MULTILINE).group(1),
        "include/maru/maru.h": ".".join(re.search(rf"define MARU_VERSION_{part} (\d+)", text["include/maru/maru.h"]).group(1)
                                        for part in ("MAJOR", "MINOR", "PATCH")),
        "debian/changelog": re.match(r"marud \(([0-9.]+)", text["debian/changelog"]).group(1),
    }
    if len(set(versions.values())) != 1:
        wrong.append(f"one version was expected, found {versions}")

    source = text["debian/control"].split("\n\n")[0]
    needed = re.search(r"^Build-Depends: (.*?)^\w", source, re.MULTILINE | re.DOTALL).group(1)
    needs = {name.strip().split()[0] for name in needed.split(",")}
    # debhelper provides two of the names. What is taken away is there for every build, or looks at its packages.
    needs = {"debhelper" if name.startswith(("debhelper-compat", "dh-sequence-")) else name for name in needs}
    listed = re.search(r"^package_packages='\n(.*?)'$", text["scripts/install-packages"], re.MULTILINE | re.DOTALL).group(1)
    installs = {line.split()[0] for line in listed.splitlines()} - {"dpkg-dev", "g++", "lintian"}
    wrong += difference("package", "Build-Depends of debian/control", needs, "scripts/install-packages package", installs)

    made = set(re.findall(r"^Package: (\S+)", text["debian/control"], re.MULTILINE))
    tried = re.search(r"^RUNTIME = \((.*?)\)", text["tests/package/fresh_root.py"], re.MULTILINE | re.DOTALL).group(1)
    wrong += difference("package", "debian/control", made, "RUNTIME of tests/package/fresh_root.py",
                        set(re.findall(r'"([^"]+)"', tried)))

    modules = {path.name for path in root.glob("python/maru/*.py")}
    packed = set(re.findall(r"dist-packages/maru/(\w+\.py)$", (root / "tests/package/contents.txt").read_text(), re.MULTILINE))
    wrong += difference("module", "python/maru", modules, "tests/package/contents.txt", packed)

    # What README sends a reader to is in some package.
    packed = [word for kind in ("docs", "examples", "install") for listed in sorted(root.glob(f"debian/*.{kind}"))
              for word in listed.read_text().split() if word.startswith("docs/")]
    documents = set(re.findall(r"[`(](docs/[\w./-]+)[`)]", (root / "README.md").read_text()))
    files = {str(path.relative_to(root)) for pattern in packed for path in root.glob(pattern)}
    wrong += [f"{name}, which README names, is in no package" for name in sorted(documents)
              if name not in files and not any(pathlib.PurePath(one).is_relative_to(name) for one in files)]

    print("\n".join(wrong) or f"{len(symbols)} functions, version {versions['meson.build']}, {len(needs)} packages: the same")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
