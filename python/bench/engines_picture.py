"""The times to the first token as a table, and as a picture: groups of bars, one for each length of a prompt. Plain SVG,
without a library."""
from xml.sax.saxutils import escape

COLOURS = {"cold": "#9aa0a6", "own": "#5f6368", "marud": "#1a73e8", "files": "#f29900", "lmcache": "#a142f4",
           "lmcache-marud": "#12b5cb", "mooncake": "#d93025", "offloading": "#188038", "lmcache-inside": "#c58af9"}
WIDTH, HEIGHT, LEFT, TOP, BAR, GAP = 760, 360, 60, 20, 22, 40


def picture(medians, shown):
    """medians: by tokens of a prompt and name, in seconds. shown: what a name stands for."""
    names = [name for name in shown if all(name in of for of in medians.values()) and name != "storing"]
    longest = max(of[name] for of in medians.values() for name in names)
    bottom = HEIGHT - 30
    high = bottom - TOP
    parts = []

    def text(x, y, words, anchor="middle", size=12):
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>')

    x = LEFT + GAP / 2
    for n, of in medians.items():
        for i, name in enumerate(names):
            bar = max(1.0, of[name] / longest * high)
            parts.append(f'<rect x="{x + i * BAR:.1f}" y="{bottom - bar:.1f}" width="{BAR - 3}" height="{bar:.1f}" '
                         f'fill="{COLOURS[name]}"/>')
            text(x + i * BAR + BAR / 2 - 1.5, round(bottom - bar - 4, 1), f"{of[name]:.2f}", size=9)
        text(x + len(names) * BAR / 2, bottom + 18, f"{n} tokens")
        x += len(names) * BAR + GAP
    width = max(WIDTH, x)
    legend = HEIGHT + 8
    for i, name in enumerate(names):
        parts.append(f'<rect x="{LEFT}" y="{legend + i * 18 - 10}" width="12" height="12" fill="{COLOURS[name]}"/>')
        text(LEFT + 18, legend + i * 18, shown[name], "start")
    text(LEFT - 10, TOP - 6, "seconds to the first token", "start")
    parts.append(f'<line x1="{LEFT}" y1="{bottom}" x2="{width - 10:.0f}" y2="{bottom}" stroke="#3c4043"/>')
    height = legend + len(names) * 18
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
            f'font-family="sans-serif" fill="#202124"><rect width="100%" height="100%" fill="#ffffff"/>'
            + "".join(parts) + "</svg>\n")


def markdown(medians, shown):
    """The same numbers in ms, and over the engine's own prefix cache."""
    sizes = list(medians)
    lines = ["| ms to the first token | " + " | ".join(f"{n} tokens" for n in sizes) + " |",
             "|---" * (len(sizes) + 1) + "|"]
    for name, words in shown.items():
        if all(name in of for of in medians.values()):
            cells = (f"{medians[n][name] * 1e3:.0f} ({medians[n][name] / medians[n]['own']:.2f})" for n in sizes)
            lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
