"""Write the hashes of every pin in constraints.txt: ``make lock``.

The versions are those of the file: change a line, or add one, and run it. Hashes that a pin has already stay as long
as its version does, since a machine may have a build of its own (torch for CPUs alone) beside those of the index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PATH = Path(__file__).resolve().parents[1] / "constraints.txt"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_MARKER = re.compile(r"^([A-Za-z0-9._-]+)==[^;\n]*;\s*([^\\\n]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def pins(text: str) -> dict[tuple[str, str], set[str]]:
    """Name and version to hashes."""
    found: dict[tuple[str, str], set[str]] = {}
    starts = [(m.start(), m.group(1), m.group(2)) for m in _PIN.finditer(text)]
    ends = [start for start, _, _ in starts[1:]] + [len(text)]
    for (start, name, version), end in zip(starts, ends, strict=True):
        found[_spelled(name), version] = set(_HASH.findall(text[start:end]))
    return found


def _spelled(name: str) -> str:
    """As the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def written(head: str, found: dict[tuple[str, str], set[str]], markers: dict[str, str]) -> str:
    """The file: a pin, where it is for some platforms alone which, and its hashes below it."""
    lines = [head]
    for (name, version), hashes in sorted(found.items(), key=lambda each: each[0]):
        pin = f"{name}=={version}" + (f" ; {markers[name]}" if name in markers else "")
        lines.append(" \\\n".join([pin, *(f"    --hash={each}" for each in sorted(hashes))]))
    return "\n".join(lines) + "\n"


def main(uv: str) -> None:
    text = PATH.read_text(encoding="utf-8")
    head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    kept = pins(text)
    markers = {_spelled(match[1]): match[2].strip() for match in _MARKER.finditer(text)}
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "pins.in"
        asked.write_text("".join(f"{name}=={version}\n" for name, version in kept), encoding="utf-8")
        options = ["--no-deps", "--generate-hashes", "--universal", "--quiet", "--no-header", "--no-annotate"]
        command = [uv, "pip", "compile", *options, "--python-version", "3.11", str(asked)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for pin, hashes in pins(told).items():
        kept[pin] = kept.get(pin, set()) | hashes
    missing = [name for (name, _), hashes in kept.items() if not hashes]
    if missing:
        sys.exit(f"error: no hashes of {', '.join(missing)}")
    PATH.write_text(written(head, kept, markers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
