"""The manual pages of the functions of libmaru and its smaller libraries, against their headers, whose texts are one here:
each function is found by its name, its page has the signature and the structures of the header and names
each error that the header names, and the examples compile.

`found` maps the names that man finds in section 3 to the page that it shows (`installed` makes it from a build folder).
"""
import json
import pathlib
import re
import subprocess

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
SECTIONS = ["NAME", "SYNOPSIS", "EXAMPLE", "DESCRIPTION", "RETURN VALUE", "ERRORS", "SEE ALSO"]


def section(text, title):
    found = re.search(rf"^# {title}\n(.*?)(?=^# |\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def code(text, title):
    """The first block of code of a section. scdoc takes away a level of backslashes."""
    found = re.search(r"^```\n(.*?)^```$", section(text, title), re.MULTILINE | re.DOTALL)
    return re.sub(r"\\(.)", r"\1", found.group(1)) if found else None


def squeezed(c):
    """C without comments, without the mark of what is exported, and with one blank where there was any."""
    c = re.sub(r"/\*.*?\*/", " ", c, flags=re.DOTALL)
    c = re.sub(r"\bMARU_(?:TOKENS_|LAYOUT_|ADAPTERS_|BLEND_)?PUBLIC ", "", c)
    return re.sub(r"\s+", " ", c).strip()


def declarations(c):
    """What is declared, each without its semicolon; one inside braces belongs to what is around it."""
    c = "\n".join(line for line in c.splitlines() if not line.startswith("#"))
    ends, depth, start, out = {"{": 1, "}": -1}, 0, 0, []
    for i, character in enumerate(c):
        depth += ends.get(character, 0)
        if character == ";" and depth == 0:
            out.append(squeezed(c[start:i]))
            start = i + 1
    return out


def functions(header):
    """Each exported function: its signature, and the errors that the comment before it names."""
    out, errors = {}, set()
    for comment, signature in re.findall(r"/\*(.*?)\*/|^(MARU_(?:TOKENS_|LAYOUT_|ADAPTERS_|BLEND_)?PUBLIC [^;]*);", header,
                                         re.MULTILINE | re.DOTALL):
        if signature:
            out[re.search(r"\b(maru_\w+)\(", signature).group(1)] = (squeezed(signature), errors)
            # Functions without a comment of their own share the one above.
        elif "@" not in comment:
            errors = set(re.findall(r"-E[A-Z0-9]+", comment.partition("Errors")[2]))
    return out


def installed(build, mistakes):
    """Follows the aliases as man does."""
    listed = json.loads((pathlib.Path(build) / "meson-info/intro-installed.json").read_text())
    pages = {pathlib.Path(to).name.removesuffix(".3"): pathlib.Path(source) for source, to in listed.items()
             if re.search(r"/man3/[^/]+\.3$", to)}
    found = {}
    for name, path in pages.items():
        # Pages are made from their sources and need not have been built; aliases are there since the build was configured.
        alias = re.match(r"\.so man3/(\S+)\.3\n$", path.read_text()) if path.exists() else None
        if alias and alias.group(1) not in pages:
            mistakes.append(f"{name}.3: leads to {alias.group(1)}.3, which is not installed")
        found[name] = alias.group(1) if alias else name
    return found


def check(pages, header, found, compiler, include, mistakes):
    known = functions(header)
    all_of_header = squeezed(header)
    for name in sorted(known.keys() - found.keys()):
        mistakes.append(f"{name}: man does not find it: neither a page nor an alias in man/meson.build")
    described = {}
    for page, text in pages.items():
        names = [name.strip() for name in section(text, "NAME").split(" - ")[0].split(",")]
        for name in names:
            described[name] = page
        check_page(page, text, names, known, all_of_header, mistakes)
        compile_example(page, text, compiler, include, mistakes)
    for name, page in sorted(found.items()):
        if not page.startswith("libmaru") and described.get(name) != page:
            mistakes.append(f"{name}.3: shows {page}.3, whose NAME does not say {name}")
    print(f"{len(known)} functions on {len(pages)} pages, found by {len(found)} names")


def check_page(page, text, names, known, all_of_header, mistakes):
    sections = re.findall(r"^# (.*)$", text, re.MULTILINE)
    if sections != SECTIONS:
        mistakes.append(f"{page}.3: has the sections {sections}, expected {SECTIONS}")
        return
    declared = declarations(code(text, "SYNOPSIS") or "")
    for declaration in declared:
        if declaration + ";" not in all_of_header:
            mistakes.append(f"{page}.3: no header declares: {declaration}")
    named_errors = set(re.findall(r"\*(-E[A-Z0-9]+)\*", section(text, "ERRORS")))
    for name in names:
        if name not in known:
            mistakes.append(f"{page}.3: describes {name}, which no header exports")
            continue
        signature, errors = known[name]
        if signature not in declared:
            mistakes.append(f"{page}.3: its synopsis lacks: {signature}")
        for error in sorted(errors - named_errors):
            mistakes.append(f"{page}.3: does not describe {error} of {name}")


def compile_example(page, text, compiler, include, mistakes):
    example = code(text, "EXAMPLE")
    if example is None:
        mistakes.append(f"{page}.3: has no example")
        return
    compiled = subprocess.run([compiler, *STRICT, "-fsyntax-only", "-I", include, "-x", "c", "-"], input=example,
                              capture_output=True, text=True, timeout=120)
    if compiled.returncode != 0:
        mistakes.append(f"{page}.3: its example does not compile:\n{compiled.stderr}")
