"""Report words of docs/words.txt, lines of ``word -> replacement``, in code and pages: ``make lint``."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ["cedar", "docs", "examples", "README.md", "CONTRIBUTING.md"]
KINDS = {".py", ".md", ".toml"}


def read(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split(" -> ", 1) for line in lines)


def hits(path: Path, words: Mapping[str, str]) -> Iterator[str]:
    longest_first = sorted(map(re.escape, words), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for match in pattern.finditer(line):
            yield f"{path}:{number}: {match[0]} -> {words[match[0].lower()]}"


def main(places: list[str]) -> int:
    words = read(ROOT / "docs" / "words.txt")
    paths = [
        path for place in places for path in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    ]
    found = [hit for path in sorted(paths) if path.suffix in KINDS for hit in hits(path, words)]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PLACES))
