"""Writes the files of a page as constants, which a header declares in a namespace:

  embed.py OUTPUT HEADER NAMESPACE page.html page.css page.js page_draw.js
"""
import pathlib
import sys

LITERAL_BYTES = 8192  # compilers limit the length of one literal; neighbours are joined


def literal(data):
    """A character that stands for itself may do so; all others, and what could be taken for an escape, in octal."""
    text = "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in data)
    return f'"{text}"'


output, header, namespace, *inputs = sys.argv[1:]
lines = [f'#include "{header}"', "", f"namespace {namespace} {{", ""]
for name, path in zip(("kPageText", "kPageStyle", "kPageScript", "kPageDrawing"), inputs, strict=True):
    data = pathlib.Path(path).read_bytes()
    parts = [literal(data[at:at + LITERAL_BYTES]) for at in range(0, len(data), LITERAL_BYTES)]
    lines.append(f"const std::string_view {name}(\n  " + "\n  ".join(parts) + f",\n  {len(data)});")
lines += ["", f"}}  // namespace {namespace}", ""]
pathlib.Path(output).write_text("\n".join(lines))
