"""Runs the examples of section 3 of the manual as programs against a marud: manual_examples.py --sources DIR --build DIR
--compiler CC --library FILE --tokens-library FILE --layout-library FILE
--blend-library FILE --adapters-library FILE
--prefetch-library FILE
--marud PROGRAM. A page's example is a program, or functions of which the last takes a client and returns 0."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import function_pages
import installed_tree
import with_marud

CALLER = """#include <maru/maru.h>
#include <stdio.h>
#include <string.h>
{declarations}
int main(void) {{
  maru_client *client;
  int result = maru_attach(NULL, &client), failed = 0;
  if (result < 0) return fprintf(stderr, "attach: %s\\n", strerror(-result));
{calls}
  maru_detach(client);
  return failed;
}}
"""


def main():
    parser = argparse.ArgumentParser()
    for name in ("sources", "build", "compiler", "library", "tokens-library", "layout-library", "adapters-library",
                 "blend-library", "prefetch-library", "marud"):
        parser.add_argument("--" + name, required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    linked = []
    for library in (arguments.library.resolve(), arguments.tokens_library.resolve(),
                    arguments.layout_library.resolve(), arguments.adapters_library.resolve(),
                    arguments.blend_library.resolve(), arguments.prefetch_library.resolve()):
        linked += [library, f"-Wl,-rpath,{library.parent}"]
    with tempfile.TemporaryDirectory(prefix="maru-examples-") as temporary:
        folder = pathlib.Path(temporary)
        programs, functions = [], {}
        # What stores comes first and what deletes last, so that the others find something.
        for path in sorted((arguments.sources / "man").glob("*.3.scd"),
                           key=lambda page: ("maru_delete" in page.name, "maru_store" not in page.name, page)):
            example = function_pages.code(path.read_text(), "EXAMPLE")
            if example is None:
                print(f"{path.name}: has no example")
                return 1
            source = folder / path.with_suffix(".c").name
            source.write_text(example)
            taken = re.findall(r"^int (\w+)\(maru_client \*client\) \{", example, re.MULTILINE)
            if re.search(r"^int main\(", example, re.MULTILINE):
                programs.append([source])
            elif taken:
                functions[source] = taken[-1]
            else:
                print(f"{path.name}: its example has neither main nor a function that takes a client")
                return 1
        caller = folder / "caller.c"
        caller.write_text(CALLER.format(
            declarations="\n".join(f"int {function}(maru_client *client);" for function in functions.values()),
            calls="\n".join(f'  if ((result = {name}(client)) != 0) failed = 1, printf("%s: %d\\n", "{name}", result);'
                            for name in functions.values())))
        programs.append([caller, *functions])
        # A second time everything is there already, and the examples go other ways.
        with with_marud.Marud(arguments.marud) as marud:
            for number, sources in enumerate(programs):
                program = folder / f"program{number}"
                subprocess.run([arguments.compiler, *function_pages.STRICT, "-I", arguments.sources / "include", "-o", program,
                                *sources, *linked, *installed_tree.sanitizer_flags(arguments.build)], check=True, timeout=300)
                for _ in range(2):
                    ran = subprocess.run([program], env=marud.environment, timeout=120, stdout=subprocess.PIPE, text=True)
                    print(ran.stdout, end="")
                    if ran.returncode != 0:
                        print(f"{sources[0].name}: status {ran.returncode}")
                        return 1
    print(f"{len(functions)} functions and {len(programs) - 1} programs ran twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
