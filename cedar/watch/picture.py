"""Draw a pipeline's operators and connections, as Mermaid text or as SVG for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cedar.core.printable import escape, one_line
from cedar.engine.binding import Binding
from cedar.engine.notes import pictured
from cedar.operators.base import Env
from cedar.pipeline.explain_logical import as_written
from cedar.plan.data import Plan
from cedar.plan.graph import Node, labels, walk

_WIDE, _HIGH, _GAP = 8, 30, 26  # pixels: width of a character, height of a box, gap between boxes
_SMALL, _LINE = 6.7, 15  # pixels: width of a character and height of a line in the details below the label
_MAX_CHARACTERS = 60  # max characters per line in a box


@dataclass(frozen=True)
class Box:
    """One operator: its label, the indices of its input boxes, and details in a smaller font."""

    label: str
    inputs: tuple[int, ...]
    details: tuple[str, ...] = ()


def boxes(root: Node, labels: Mapping[int, str], details: Sequence[tuple[str, ...]] = ()) -> list[Box]:
    """Return a box per operator, sources first. ``labels`` maps the ids of nodes to labels."""
    number = {id(node): i for i, node in enumerate(walk(root))}
    made = [Box(labels[id(node)], tuple(number[id(child)] for child in node.inputs)) for node in walk(root)]
    return [replace(box, details=lines) for box, lines in zip(made, details, strict=True)] if details else made


def mermaid(shown: Sequence[Box]) -> str:
    """Return the boxes as Mermaid text, which GitHub and notebooks render.

    Examples:
        >>> print(mermaid([Box("read", ()), Box("batch(2)", (0,))]))
        flowchart TB
          n0["read"]
          n1["batch(2)"]
          n0 --> n1
    """
    reported = [_cut(box.label).replace('"', "#quot;") for box in shown]
    arrows = [f"  n{i} --> n{at}" for at, box in enumerate(shown) for i in box.inputs]
    return "\n".join(["flowchart TB", *(f'  n{i}["{label}"]' for i, label in enumerate(reported)), *arrows])


def svg(shown: Sequence[Box], shares: Mapping[str, float] | None = None) -> str:
    """Return a self-contained SVG. Boxes are colored by their label's share, 0 to 1: larger shares are redder."""
    shares = shares or {}
    shown = [replace(box, details=tuple(map(one_line, box.details))) for box in shown]
    depth: list[int] = []
    for box in shown:
        depth.append(1 + max((depth[i] for i in box.inputs), default=-1))
    strings = [_cut(b.label) + (f"  {shares[b.label]:.0%}" if b.label in shares else "") for b in shown]
    small = max((len(_cut(line)) for box in shown for line in box.details), default=0)
    width = int(max(max(map(len, strings)) * _WIDE, small * _SMALL)) + 16
    high = _HIGH + _LINE * max(len(box.details) for box in shown)
    ranks: list[list[int]] = [[i for i, d in enumerate(depth) if d == level] for level in range(max(depth) + 1)]
    across = max(map(len, ranks)) * (width + _GAP)
    at = {
        i: (across / 2 + (place - (len(rank) - 1) / 2) * (width + _GAP), level * (high + _GAP) + 4)
        for level, rank in enumerate(ranks)
        for place, i in enumerate(rank)
    }
    parts = [
        f'<line x1="{at[i][0]:.0f}" y1="{at[i][1] + high:.0f}" x2="{at[n][0]:.0f}" y2="{at[n][1]:.0f}" stroke="#666"/>'
        for n, box in enumerate(shown)
        for i in box.inputs
    ]
    for i, text in enumerate(strings):
        x, y = at[i]
        share = shares.get(shown[i].label, 0.0)
        fill = f"rgb(255,{250 - 130 * share:.0f},{245 - 170 * share:.0f})"
        parts.append(
            f'<rect x="{x - width / 2:.0f}" y="{y:.0f}" width="{width}" height="{high}" rx="4" fill="{fill}" '
            f'stroke="#666"><title>{escape(chr(10).join((shown[i].label, *shown[i].details)))}</title></rect>'
            f'<text x="{x:.0f}" y="{y + 19:.0f}" text-anchor="middle" fill="#111">{escape(text)}</text>'
            + "".join(
                f'<text x="{x:.0f}" y="{y + 19 + _LINE * (n + 1):.0f}" text-anchor="middle" fill="#444" '
                f'font-size="11">{escape(_cut(line))}</text>'
                for n, line in enumerate(shown[i].details)
            )
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="operators of the pipeline" '
        f'width="{across:.0f}" height="{len(ranks) * (high + _GAP)}" font-family="monospace" font-size="13">'
        f"{''.join(parts)}</svg>"
    )


def _cut(label: str) -> str:
    return label if len(label) <= _MAX_CHARACTERS else label[: _MAX_CHARACTERS - 3] + "..."


def html(root: Node, text: str) -> str:
    """Return HTML for notebooks: a picture of the pipeline, and ``text`` below it."""
    binding = Binding(root, None, Env(sampling=True))
    executor = Plan.as_written(root).executor
    details = pictured(binding.nodes, binding.splits, binding.lowered(root, executor), executor)
    return f"{svg(boxes(root, as_written(root, labels(root)), details))}<pre>{escape(text)}</pre>"


def chart(root: Node) -> str:
    """Return the pipeline as Mermaid text."""
    return mermaid(boxes(root, as_written(root, labels(root))))
