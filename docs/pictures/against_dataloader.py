# ruff: noqa: INP001 - a folder of pictures, not a package
"""Draw against_dataloader.svg from the tables of the docs: ``python docs/pictures/against_dataloader.py``.

Rows are read as `make bench` writes them: "| simclr: against torch DataLoader, tuned |  | 1.73 x | 1.54 to 2.15 |".
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = {"tuned": "its best setting", "2 workers": "2 workers, as its documentation advises"}
_ROW = re.compile(
    r"^\| (\w+): against torch DataLoader, (tuned|2 workers) \|[^|]*\| ([\d.]+) x \| ([\d.]+) to ([\d.]+)", re.MULTILINE
)
_LEFT, _TOP, _STEP, _BAR, _UNIT = 120, 66, 40, 13, 120  # pixels; _UNIT is the length of a ratio of 1
_MAX = 4.0  # longer bars are cut
_STYLE = """svg{font:13px system-ui,sans-serif}.page{fill:#fff}text{fill:#1f2328}.s0{fill:#b45309}.s1{fill:#e8b16f}
line{stroke:#1f2328}.one{stroke-dasharray:4 3}
@media (prefers-color-scheme:dark){.page{fill:#161b22}text{fill:#e6edf3}.s0{fill:#f0a04b}.s1{fill:#8a5a20}
line{stroke:#e6edf3}}"""

Rows = dict[str, dict[str, tuple[float, float, float]]]  # workload, setting: ratio, least, most


def main() -> None:
    """Read the docs, write the picture."""
    rows: Rows = {}
    for page in sorted(HERE.parent.rglob("*.md")):
        for name, setting, *figures in _ROW.findall(page.read_text(encoding="utf-8")):
            ratio, least, most = map(float, figures)
            rows.setdefault(name, {})[setting] = ratio, least, most
    ordered = dict(sorted(rows.items(), key=lambda row: -row[1]["tuned"][0]))
    (HERE / "against_dataloader.svg").write_text(picture(ordered), encoding="utf-8")


def picture(rows: Rows) -> str:
    """Two bars for each workload: the ratio, and its range over the rounds as a whisker."""
    width, height = _LEFT + int(_MAX * _UNIT) + 110, _TOP + _STEP * len(rows) + 12
    parts = [f'<rect class="page" width="{width}" height="{height}" rx="8"/>']
    parts.append(_text(_LEFT, 24, "Rows per second of cedar, as a multiple of torch's DataLoader", 'font-weight="600"'))
    for at, words in enumerate(SETTINGS.values()):
        x = _LEFT + 170 * at
        parts += [_bar(at, x, 36, 12), _text(x + 18, 47, words)]
    for number, (name, settings) in enumerate(rows.items()):
        top = _TOP + _STEP * number
        parts.append(_text(_LEFT - 10, top + 19, name, 'text-anchor="end"'))
        for at, setting in enumerate(SETTINGS):
            ratio, least, most = settings[setting]
            y, cut = top + at * (_BAR + 1), ratio > _MAX
            parts.append(_bar(at, _LEFT, y, min(ratio, _MAX) * _UNIT))
            if not cut:
                parts.append(_line(_LEFT + least * _UNIT, _LEFT + most * _UNIT, y + _BAR / 2, y + _BAR / 2))
            x = _LEFT + min(ratio if cut else most, _MAX) * _UNIT + 6
            parts.append(_text(x, y + 11, f"{ratio:.3g}x{' (bar cut)' if cut else ''}", 'font-size="11"'))
    one = _LEFT + _UNIT
    parts.append(_line(one, one, _TOP - 8, height - 12, 'class="one"'))
    label = "; ".join(f"{name} {settings['tuned'][0]:.3g} times" for name, settings in rows.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="cedar against DataLoader in its best setting: {label}"><style>{_STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'


def _bar(kind: int, x: float, y: float, length: float) -> str:
    return f'<rect class="s{kind}" x="{x:.0f}" y="{y}" width="{length:.0f}" height="{_BAR}"/>'


def _line(x1: float, x2: float, y1: float, y2: float, more: str = "") -> str:
    return f'<line x1="{x1:.0f}" x2="{x2:.0f}" y1="{y1}" y2="{y2}" {more}/>'


if __name__ == "__main__":
    main()
