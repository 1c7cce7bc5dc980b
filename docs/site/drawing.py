"""A small SVG: boxes, cells, arrows and words in colors that follow the reader's light or dark scheme."""

from __future__ import annotations

from html import escape

LIGHT = ("#7fb3d5", "#f5b971", "#9bc995", "#e79a9a", "#b8a5dd", "#e3d26f", "#8fd0c6", "#d9a6c6")
DARK = ("#2f6690", "#9a6417", "#3d7a3a", "#963f3f", "#65509c", "#7d6f14", "#2a7468", "#8b4a73")
STYLE = (
    "<style>"
    "svg{--ink:#1f2328;--soft:#57606a;--line:#8c959f;--box:#f3f5f7;%s}"
    "@media (prefers-color-scheme:dark){svg{--ink:#e6e9ee;--soft:#a9b1bb;--line:#77808a;--box:#2b313a;%s}}"
    "text{font:14px system-ui,sans-serif;fill:var(--ink)}"
    ".soft{fill:var(--soft)}.code{font:12.5px ui-monospace,monospace}.small{font-size:11px}.bold{font-weight:600}"
    ".mid{text-anchor:middle}.box{fill:var(--box);stroke:var(--line)}.line{stroke:var(--soft);fill:none;stroke-width:1.5}"
    "</style>"
)


class Drawing:
    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title, self.parts = (width, height), title, list[str]()

    def box(self, x: float, y: float, width: float, height: float, color: int | None = None, radius: float = 4) -> None:
        """A box, in one of eight colors or plain."""
        how = 'class="box"' if color is None else f'style="fill:var(--c{color % 8})"'
        at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect {at} rx="{radius:g}" {how}/>')

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Words from x on, or around it where ``kind`` has "mid"; y is that of the base line."""
        how = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{how} xml:space="preserve">{escape(words)}</text>')

    def cell(self, x: float, y: float, words: object, color: int, width: float = 24, height: float = 22) -> None:
        """A value in a colored box."""
        self.box(x, y, width - 2, height - 2, color, 3)
        self.text(x + width / 2 - 1, y + height / 2 + 3, str(words), "small mid")

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        at = f'd="M{x:g} {y:g}L{to_x:g} {to_y:g}"'
        self.parts.append(f'<path class="line" marker-end="url(#tip)" {at}/>')

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect {at} rx="5" class="line"/>')

    def svg(self) -> str:
        light = "".join(f"--c{n}:{color};" for n, color in enumerate(LIGHT))
        dark = "".join(f"--c{n}:{color};" for n, color in enumerate(DARK))
        width, height = self.size
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0L8 4L0 8z" style="fill:var(--soft)"/></marker></defs>'
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        )
        body = "\n".join(self.parts)
        return (
            f'{head} role="img">\n<title>{escape(self.title)}</title>\n{STYLE % (light, dark)}\n{tip}\n{body}\n</svg>\n'
        )
