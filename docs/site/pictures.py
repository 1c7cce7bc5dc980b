"""Draw the diagrams of the docs from what cedar does: ``python docs/site/pictures.py`` writes docs/pictures/*.svg."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from drawing import Drawing

import cedar
from cedar import col

FOLDER = Path(__file__).resolve().parents[1] / "pictures"


def numbers(files: int, groups: int, rows: int) -> cedar.Pipeline:
    """Parquet files of numbered rows below the current folder."""
    each = groups * rows
    os.makedirs("data", exist_ok=True)
    for n in range(files):
        pq.write_table(pa.table({"x": range(n * each, (n + 1) * each)}), f"data/{n}.parquet", row_group_size=rows)
    return cedar.read_parquet("data")


def batches(pipeline: cedar.Pipeline, rank: int = 0, world: int = 1, **options: Any) -> list[list[int]]:
    with pipeline.loader(rank=rank, world=world, executor="inline", plan="off", **options) as loader:
        return [batch["x"].tolist() for batch in loader]


def hero_rank(made: Drawing, rank: int, share: list[list[int]]) -> None:
    """The batches of one rank."""
    for n, batch in enumerate(share):
        y = 50 + rank * 126 + n * 34
        for k, x in enumerate(batch):
            made.cell(560 + k * 24, y, x, x // 4)
        made.arrow(662, y + 10, 730, 98 + rank * 126)
    made.box(738, 68 + rank * 126, 132, 58)
    made.text(804, 92 + rank * 126, f"rank {rank}", "mid bold")
    made.text(804, 112 + rank * 126, f"{len(share)} steps", "mid small soft")


def hero() -> Drawing:
    """24 rows of three files, from splits to two ranks."""
    rows = numbers(3, 2, 4)
    shuffled = rows.shuffle(seed=3, window=12)
    order = [row["x"] for row in shuffled.loader(rank=0, world=1, executor="inline", plan="off")]
    windows = [order[:12], order[12:]]
    shares = [batches(shuffled.batch(4), rank, 2) for rank in range(2)]
    made = Drawing(
        900,
        330,
        "Files are cut into splits, splits are shuffled in windows, windows give batches, and ranks share them",
    )
    for n, (x, name) in enumerate(((20, "files"), (170, "splits"), (330, "windows"), (560, "batches"), (740, "ranks"))):
        made.text(x, 28, name, "bold")
        if n:
            made.arrow(x - 38, 23, x - 10, 23)
    for file in range(3):
        made.box(20, 48 + file * 84, 92, 70)
        made.text(28, 64 + file * 84, f"{file}.parquet", "code small")
        for group in range(2):
            for n in range(4):
                x = file * 8 + group * 4 + n
                made.cell(26 + n * 20, 70 + file * 84 + group * 22, x, x // 4, 20, 20)
    for split in range(6):
        for n in range(4):
            made.cell(170 + n * 22, 48 + split * 42, split * 4 + n, split)
    for at, window in enumerate(windows):
        made.box(322, 44 + at * 126, 168, 114)
        for n, x in enumerate(window):
            made.cell(336 + n % 6 * 24, 62 + at * 126 + n // 6 * 30, x, x // 4)
        made.text(
            336,
            144 + at * 126,
            f"rows of splits {', '.join(str(s) for s in sorted({x // 4 for x in window}))}",
            "small soft",
        )
    for rank, share in enumerate(shares):
        hero_rank(made, rank, share)
    made.text(
        20, 318, "Colors are splits. Each row reaches one rank once, in an order that seed and epoch decide.", "soft"
    )
    return made


def window() -> Drawing:
    """48 rows before and after a shuffle, with a smaller and a larger window."""
    rows = numbers(6, 1, 8)
    made = Drawing(840, 250, "A shuffle permutes splits, and mixes rows within windows of whole splits")
    wide = 840 - 180
    for line, (name, note, pipeline, size) in enumerate(
        (
            ("as stored", "no shuffle", rows, 0),
            ("window=16", "2 splits each", rows.shuffle(seed=1, window=16), 16),
            ("window=48", "all 6 splits", rows.shuffle(seed=1, window=48), 48),
        )
    ):
        y = 24 + line * 74
        made.text(10, y + 16, name, "code")
        made.text(10, y + 34, note, "small soft")
        order = [row["x"] for row in pipeline.loader(rank=0, world=1, executor="inline", plan="off")]
        step = wide / len(order)
        for n, x in enumerate(order):
            made.box(120 + n * step, y, step - 1.5, 34, x // 8, 2)
        for start in range(0, len(order), size or len(order) + 1):
            if size:
                made.frame(117 + start * step, y - 4, size * step + 3, 42)
    made.text(
        10,
        240,
        "One cell is one row, and colors are splits of 8 rows. A frame is a window: its rows are in memory together.",
        "soft",
    )
    return made


def grid(
    made: Drawing, x: float, y: float, title: str, shares: list[list[list[int]]], color: Callable[[int], int]
) -> None:
    """Ranks below each other, their steps next to each other."""
    made.text(x, y - 12, title, "bold")
    for rank, share in enumerate(shares):
        made.text(x, y + 18 + rank * 40, f"rank {rank}", "small")
        at = x + 50
        for batch in share:
            made.box(at - 4, y + rank * 40, 4 * 24 + 6, 30)
            for k, row in enumerate(batch):
                made.cell(at + k * 24, y + 4 + rank * 40, row, color(row))
            at += 4 * 24 + 12


def ranks() -> Drawing:
    """An epoch of 46 rows on three ranks."""
    rows = cedar.from_items([{"x": i} for i in range(46)]).batch(4)
    shares = [batches(rows, rank, 3) for rank in range(3)]
    made = Drawing(620, 200, "Three ranks share an epoch: each takes as many steps, and no row is on two of them")
    grid(made, 16, 44, "46 rows in batches of 4, on 3 ranks", shares, lambda row: row // 12)
    seen = {row for share in shares for batch in share for row in batch}
    left = sorted(set(range(46)) - seen)
    made.text(
        16,
        186,
        f"Each rank takes {len(shares[0])} steps. Left out of this epoch: row {', '.join(map(str, left))}.",
        "soft",
    )
    return made


def resume() -> Drawing:
    """Stop two ranks after two steps, continue with three."""
    rows = cedar.from_items([{"x": i} for i in range(40)]).shuffle(seed=1).batch(4)
    loaders = [rows.loader(rank=rank, world=2, executor="inline", plan="off") for rank in range(2)]
    before = [[batch["x"].tolist() for batch in islice(loader, 2)] for loader in loaders]
    states = [loader.state_dict() for loader in loaders]
    after = []
    for rank in range(3):
        loader = rows.loader(rank=rank, world=3, executor="inline", plan="off")
        loader.load_state_dict(states)
        after.append([batch["x"].tolist() for batch in loader])
    known = {row for share in before for batch in share for row in batch}
    again = [row for share in after for batch in share for row in batch]
    assert not known & set(again)
    made = Drawing(840, 220, "A run on two ranks stops, and three ranks continue with the rows that are left")
    grid(made, 16, 44, "2 ranks, 2 steps", before, lambda row: 0)
    made.box(310, 54, 110, 54)
    made.text(365, 78, "state_dict()", "code mid")
    made.text(365, 96, "a few KiB of JSON", "small soft mid")
    made.arrow(280, 80, 304, 80)
    made.arrow(424, 80, 448, 80)
    grid(made, 456, 44, "3 ranks, the rest", after, lambda row: 2)
    left = 40 - len(known) - len(again)
    made.text(
        16, 204, f"{len(known)} rows before the stop, {len(again)} after it, {left} left out, none twice.", "soft"
    )
    return made


def tokens(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def plan() -> Drawing:
    """A plan as written and as it runs, both as explain() prints them."""
    table = {
        "text": ["some words here"] * 4000,
        "lang": ["en", "de", "fr", "it"] * 1000,
        "score": [0.5] * 4000,
        "id": range(4000),
    }
    pq.write_table(pa.table(table), "d.parquet", row_group_size=500)
    pipeline = (
        cedar.read_parquet("d.parquet")
        .map(tokens, "text", into="tokens")
        .filter(col("lang") == "en")
        .select("tokens", "score")
        .shuffle(seed=1)
        .batch(64)
    )
    said = pipeline.explain().splitlines()
    logical = [
        line.split("  ")[1].strip() for line in said[1 : said.index(next(x for x in said if x.startswith("COST")))]
    ]
    start = said.index(next(line for line in said if line.startswith("PHYSICAL")))
    physical = [line.strip() for line in said[start + 1 : said.index(next(x for x in said if x.startswith("RULES")))]]
    steps = [line.partition(". ")[2].partition("   [")[0] for line in physical if line[0].isdigit()]
    made = Drawing(920, 330, "A pipeline as written, and the plan that runs it")
    made.text(16, 26, "as written", "bold")
    made.text(330, 26, "as it runs", "bold")
    for n, line in enumerate(logical):
        made.box(16, 40 + n * 46, 270, 32, {1: 0, 2: 1, 3: 2}.get(n))
        made.text(28, 61 + n * 46, line, "code")
        if n:
            made.arrow(150, 28 + n * 46 - 2, 150, 38 + n * 46)
    for n, line in enumerate(steps):
        made.box(330, 40 + n * 46, 574, 32, {0: 1, 1: 0}.get(n))
        where, _, what = line.partition(" ")
        made.text(342, 61 + n * 46, where, "code bold")
        made.text(402, 61 + n * 46, what.strip(), "code")
        if n:
            made.arrow(617, 28 + n * 46 - 2, 617, 38 + n * 46)
    made.text(330, 292, "The filter moves into the file, so that the function sees a quarter of the rows.", "soft")
    made.text(330, 312, "Two of four columns are read. The rows and their order stay the same.", "soft")
    return made


def batch() -> Drawing:
    """A list column in a batch, plain and deduplicated."""
    lists = [[7, 8, 9], [7, 8, 9], [7, 8, 9], [4], [4], [5, 6]]
    rows = cedar.from_items([{"user": n, "seen": ids} for n, ids in enumerate(lists)])
    plain = next(iter(rows.batch(6)))["seen"]
    marked = next(iter(rows.dedup([["seen"]]).batch(6)))
    group = next(value for value in marked.values() if isinstance(value, cedar.InverseKeyedJaggedTensor))
    color = {(7, 8, 9): 0, (4,): 1, (5, 6): 2}
    made = Drawing(
        900,
        300,
        "A column of lists in a batch: as a JaggedTensor, and deduplicated, where each distinct list is held once",
    )
    made.text(16, 26, "six rows", "bold")
    for n, ids in enumerate(lists):
        made.text(16, 58 + n * 30, f"row {n}", "small")
        for k, x in enumerate(ids):
            made.cell(66 + k * 24, 43 + n * 30, x, color[tuple(ids)])
    of = {x: color[ids] for ids in color for x in ids}

    def line(x: float, y: float, name: str, values: list[int], colors: list[int] | None) -> None:
        made.text(x, y, name, "code")
        for k, value in enumerate(values):
            if colors is None:
                made.box(x + k * 24, y + 9, 22, 20)
                made.text(x + k * 24 + 11, y + 23, str(value), "small mid")
            else:
                made.cell(x + k * 24, y + 9, value, colors[k])

    made.text(200, 26, "JaggedTensor", "bold")
    values = plain.values.tolist()
    line(200, 56, "values", values, [of[x] for x in values])
    line(200, 120, "offsets", plain.offsets.tolist(), None)
    made.text(200, 216, "Row i is values[offsets[i]:offsets[i + 1]].", "small soft")
    made.text(540, 26, "after dedup(): InverseKeyedJaggedTensor", "bold")
    values = np.asarray(group.values["seen"]).tolist()
    line(540, 56, "values", values, [of[x] for x in values])
    line(540, 120, "offsets", np.asarray(group.offsets["seen"]).tolist(), None)
    inverse = np.asarray(group.inverse_lookup).tolist()
    line(540, 184, "inverse_lookup", inverse, [color[tuple(lists[n])] for n in range(6)])
    made.text(540, 250, "Row i has the list with the number inverse_lookup[i].", "small soft")
    made.text(16, 286, f"The model looks up {len(values)} ids instead of {len(plain.values)}.", "soft")
    return made


def loop() -> Drawing:
    """How a plan changes during a run."""
    made = Drawing(
        880, 210, "The optimizer runs a first plan, measures blocks, searches, checks a candidate, and switches plans"
    )
    steps = (
        (10, 20, "as written", "your pipeline"),
        (190, 20, "first plan", "rules without figures"),
        (370, 20, "run", "delivers rows"),
        (550, 20, "profile", "blocks are measured"),
        (730, 20, "search", "orders and places"),
        (730, 130, "check", "same first rows?"),
        (370, 130, "next plan", "between two tasks"),
    )
    for n, (x, y, name, note) in enumerate(steps):
        made.box(x, y, 140, 52, n % 8 if n in {2, 6} else None)
        made.text(x + 70, y + 22, name, "mid bold")
        made.text(x + 70, y + 40, note, "mid small")
    for n in range(4):
        made.arrow(steps[n][0] + 142, 46, steps[n + 1][0] - 4, 46)
    made.arrow(785, 74, 785, 126)
    made.arrow(815, 128, 815, 76)
    made.text(822, 106, "no", "small soft")
    made.arrow(728, 156, 514, 156)
    made.text(600, 148, "yes", "small soft")
    made.arrow(440, 128, 440, 76)
    made.text(10, 202, "If the first rows differ, cedar refuses the rule by name and searches again.", "soft")
    return made


# ---- benchmarks ------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"^\| (\*\*)?([^|*]+?)(?:\*\*)? \| ([\d,.]+) \(", re.MULTILINE)


def fastest(table: str, most: int = 5) -> list[tuple[str, float]]:
    """Of a table of the benchmarks: the first contestants by their rates, cedar among them; limits are none."""
    rates = {name: float(rate.replace(",", "")) for _, name, rate in _LINE.findall(table) if "LIMIT" not in name}
    best: dict[str, tuple[str, float]] = {}
    for name, rate in sorted(rates.items(), key=lambda each: -each[1]):
        best.setdefault(name.split(",")[0], (name.split(",")[0], rate))  # each library in its best setting
    first = list(best.values())[:most]
    return first if any(name == "cedar" for name, _ in first) else [*first[:-1], best["cedar"]]


def peers() -> Drawing:
    """Rates of the fastest loaders on each workload, from the tables of the docs."""
    page = (FOLDER.parent / "benchmarks_tables.md").read_text()
    tables = [part for part in page.split("\n### ")[1:] if _LINE.search(part)]
    made = Drawing(880, 30 + (len(tables) + 1) // 2 * 152, "Rates of the five fastest loaders on each workload")
    for n, table in enumerate(tables):
        x, y = 10 + n % 2 * 440, 20 + n // 2 * 152
        made.text(x, y, table.partition("\n")[0], "bold")
        found = fastest(table)
        top = max(rate for _, rate in found)
        for k, (name, rate) in enumerate(found):
            made.text(x, y + 24 + k * 22, name, "small")
            made.box(x + 120, y + 10 + k * 22, 220 * rate / top, 18, 6 if name == "cedar" else 4, 2)
            made.text(x + 126 + 220 * rate / top, y + 24 + k * 22, f"{rate:,.0f}", "small")
    return made


# ---- images ----------------------------------------------------------------------------------------------------------


def scene(height: int = 150, width: int = 200) -> np.ndarray:
    """A picture of hills under a sun, from a formula."""
    y, x = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    image = np.stack([110 + 130 * y, 160 + 70 * y, 235 - 30 * y], axis=-1)
    sun = np.clip(12 * (0.13 - np.hypot((x - 0.72) * width / height, y - 0.28)), 0, 1)[..., None]
    image = image * (1 - sun) + np.array([255, 236, 150]) * sun
    for n, (base, rise, shade) in enumerate(
        ((0.55, 0.10, (96, 128, 150)), (0.68, 0.09, (70, 122, 84)), (0.84, 0.06, (44, 88, 52)))
    ):
        ridge = base + rise * np.sin(7 * x + 2 * n) * np.cos(3 * x + n)
        hill = np.clip((y - ridge) * height, 0, 1)[..., None]
        rough = 10 * np.sin(60 * x + 9 * n) * np.sin(80 * y)
        image = image * (1 - hill) + (np.array(shade) + rough[..., None]) * hill
    house = ((abs(x - 0.3) < 0.055) & (y > 0.62) & (y < 0.8))[..., None]
    roof = ((y > 0.62 - 0.11 + 1.6 * abs(x - 0.3)) & (y <= 0.62))[..., None]
    image = np.where(house, np.array([214, 188, 160]), np.where(roof, np.array([168, 60, 48]), image))
    return np.ascontiguousarray(np.clip(image, 0, 255).astype(np.uint8))


GALLERY = (  # calls as users write them
    "center_crop(100)", "crop(20, 40, 90, 120)", "resize((75, 100))", "random_crop(100)",
    "random_resized_crop(120)",
    "horizontal_flip(p=1)", "vertical_flip(p=1)", "rotation((20, 20))", "affine(0, shear=(25, 25))",
    "perspective(0.5, p=1)", "pad(20, fill=90)", "expand(0, (1.5, 1.5), p=1)", "erasing(p=1, value=90)",
    "color_jitter(.5, .5, .5, .2)", "photometric_distort(p=1)", "grayscale(p=1)", "gaussian_blur(9, sigma=(3, 3))",
    "sharpness(8, p=1)", "posterize(2, p=1)", "solarize(150, p=1)", "invert(p=1)",
    "autocontrast(p=1)", "equalize(p=1)", "rand_augment()", "trivial_augment()",
)  # fmt: skip
MIXED = ("mixup(2, alpha=8)", "cutmix(2, alpha=8)")


def images() -> Drawing:
    """One picture through each operator on images that leaves an image."""
    from cedar.operators import image

    def made_by(call: str) -> Any:
        return eval(f"image.{call}", {"image": image})

    rows = cedar.from_items([{"image": scene()}])
    shown = [("the image", scene())]
    shown += [(call, only(rows.map(made_by(call), "image"))["image"]) for call in GALLERY]
    pair = cedar.from_items([{"image": scene(), "label": 0}, {"image": scene()[::-1], "label": 1}]).batch(2)
    shown += [(call, only(pair.map(made_by(call), "image", "label"))["image"][0]) for call in MIXED]
    made = Drawing(880, -(-len(shown) // 4) * 190 + 4, "What each operator on images does to one picture")
    for n, (call, pixels) in enumerate(shown):
        x, y = 10 + n % 4 * 218, 10 + n // 4 * 190
        scale = min(1.0, 200 / pixels.shape[1], 150 / pixels.shape[0])
        size = f'width="{pixels.shape[1] * scale:g}" height="{pixels.shape[0] * scale:g}"'
        made.parts.append(f'<image x="{x}" y="{y}" {size} href="data:image/webp;base64,{webp(pixels)}"/>')
        made.text(x, y + 167, call, "code small")
    return made


def only(pipeline: cedar.Pipeline) -> dict[str, Any]:
    """The first row or batch."""
    return next(iter(pipeline.loader(rank=0, world=1, executor="inline", plan="off", seed=4)))


def webp(pixels: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8).squeeze()).save(file, "WEBP", quality=80)
    return base64.b64encode(file.getvalue()).decode()


DIAGRAMS = (hero, window, ranks, resume, plan, batch, loop, peers)


def drawn(draw: Callable[[], Drawing]) -> str:
    """A diagram, drawn in an empty folder."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return draw().svg()


if __name__ == "__main__":
    for draw in (*DIAGRAMS, images):
        if len(sys.argv) == 1 or draw.__name__ in sys.argv:
            (FOLDER / f"{draw.__name__}.svg").write_text(drawn(draw))
