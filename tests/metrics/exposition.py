"""Reads what marud says at /metrics, strictly: what is not as the text format wants it is an error."""
import re

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')


class Exposition:
    def __init__(self, text):
        self.families = {}  # name: (type, help)
        self.samples = {}   # (name, labels): value
        current = None
        if not text.endswith("\n"):
            raise ValueError("the last line does not end")
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name, said = line[7:].split(" ", 1)
                if name in self.families or not said:
                    raise ValueError(f"{name} comes twice, or says nothing")
                self.families[name] = (None, said)
                current = name
                continue
            if line.startswith("# TYPE "):
                name, kind = line[7:].split(" ")
                if name != current or kind not in ("counter", "gauge", "histogram"):
                    raise ValueError(line)
                self.families[name] = (kind, self.families[name][1])
                continue
            found = SAMPLE.match(line)
            if not found:
                raise ValueError(f"not a sample: {line}")
            name, labels, value = found.groups()
            base = name
            if self.families[current][0] == "histogram":
                base = re.sub("_(bucket|sum|count)$", "", name)
            if base != current:
                raise ValueError(f"{name} stands under {current}")
            read, at = {}, 0
            while labels and at < len(labels):
                label = LABEL.match(labels, at)
                if not label:
                    raise ValueError(f"labels: {line}")
                read[label[1]] = re.sub(r'\\(.)', lambda m: "\n" if m[1] == "n" else m[1], label[2])
                at = label.end()
            key = (name, tuple(sorted(read.items())))
            if key in self.samples:
                raise ValueError(f"twice: {line}")
            self.samples[key] = float(value)

    def value(self, name, **labels):
        """The sum of the samples of this name that have these labels; nothing when there is none."""
        found = [value for (sample, own), value in self.samples.items()
                 if sample == name and set(labels.items()) <= set(own)]
        return sum(found) if found else None

    def labels(self, name, label):
        return {dict(own).get(label) for (sample, own) in self.samples if sample == name}
