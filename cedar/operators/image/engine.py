"""Runs one image operator or a chain: it computes what each row needs first, and then processes each image once.

Consecutive spatial operators become moves: numbers computed from the image sizes, which are read from file headers. So
an image is decoded only down to the last row that is needed, and the needed part is resampled once, directly into the
result. Consecutive pixel operators run on all images of the block in one kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cedar.core import buffers, limits
from cedar.core.columns import UNKNOWN, Column, ColumnType, TensorType, type_of
from cedar.core.errors import PipelineError
from cedar.operators.algebra import algebra_of
from cedar.operators.chains import ChainFault, Link
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import Boxes, box_column, box_rows, kept_entries, thinned
from cedar.operators.image.color import PixelTransform
from cedar.operators.image.decode import Decode
from cedar.operators.image.headers import BadImage
from cedar.operators.image.kernels import compiled
from cedar.operators.image.layout import Image, ImageType, Layout, ReusedImage, Room, Sizes, layout, new_image
from cedar.operators.image.moves import Mask, RowMoves, Steps, full, moved_boxes
from cedar.operators.image.normalize import ChannelsFirst, Normalize, ToFloat
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.resizing import Filter
from cedar.operators.image.sources import Arrays, Files, PixelSource, Source
from cedar.operators.image.spatial import Spatial
from cedar.operators.transform import BadValues, Transform, as_tuple

_BOXES_FIX = "give each image an array of shape (boxes, 4), and an entry for each box"
_MIXED_FIX = "bring images to one number of channels and one dtype first, say by decode(mode='RGB')"


def alone(transform: Transform, columns: Sequence[Column], draws: Draws | None) -> Any:
    """Run one operator on columns; return its column, or a tuple of several columns.

    Raises:
        BadValues: some rows have no result.
    """
    names = tuple(str(i) for i in range(len(columns)))
    done, faults = run([Link(transform, names, names)], dict(zip(names, columns, strict=True)), [draws])
    if faults:
        rows = sorted(faults)
        raise BadValues({row: faults[row].why for row in rows}, faults[rows[0]].fix)
    made = tuple(done[name] for name in names)
    return made if len(made) > 1 else made[0]


def run(
    links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
) -> tuple[dict[str, Column], dict[int, ChainFault]]:
    """See ``Chain.run``."""
    order = _order(links)
    links, draws = [links[i] for i in order], [draws[i] for i in order]
    job = _Job(links, columns, draws)
    at = 0
    while at < len(links):
        end = at + 1
        while end < len(links) and _family(links[end]) is _family(links[at]):
            end += 1
        if _family(links[at]) is _pixels and end < len(links) and isinstance(links[end].transform, ChannelsFirst):
            end += 1  # the pass over pixels writes its results with channels first
        _family(links[at])(job, at, end)
        at = end
    return job.results(), {row: ChainFault(order[f.link], f.why, f.fix) for row, f in job.faults.items()}


def _order(links: Sequence[Link]) -> list[int]:
    """Return the order to run links in: crops and flips move before pointwise operators, where they cost nothing."""
    order: list[int] = []
    files = isinstance(links[0].transform, Decode) and links[0].transform.channels is not None
    for i, link in enumerate(links):
        place = len(order)
        if files and algebra_of(link.transform) == "spatial":
            while place > 1 and algebra_of(links[order[place - 1]].transform) == "pointwise":
                place -= 1
        order.insert(place, i)
    return order


class _Job:
    """The state of one block while a chain processes it."""

    def __init__(self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]) -> None:
        self.links, self.draws = links, draws
        self.beside = dict(columns)  # boxes and labels
        first = self.beside.pop(links[0].reads[0])
        self.n = len(first)
        self.faults: dict[int, ChainFault] = {}
        self.written: set[str] = set()
        self.boxes: dict[str, list[Boxes]] = {}  # the parsed columns of boxes, by name
        start = links[0].transform
        self.source: Source = Files(first, start, links[0].exact) if isinstance(start, Decode) else Arrays(first)
        for row, bad in self.source.bad.items():
            self.faults[row] = ChainFault(0, bad.why, bad.fix)
        self.kind: ColumnType = self.source.kind
        self.layouts: list[Layout | None] = []  # each row's layout, if the column's type does not determine it
        self.apart: dict[Layout, ColumnType] = {}  # the current type of images, by original layout
        self.tell_apart()

    def fault(self, row: int, link: int, why: str, fix: str) -> None:
        """Record that a row failed at a link, unless it failed at an earlier link."""
        if row not in self.faults or self.faults[row].link > link:
            self.faults[row] = ChainFault(link, why, fix)

    def good(self) -> list[int]:
        """Return the rows that have not failed."""
        return [row for row in range(self.n) if row not in self.faults] if self.faults else list(range(self.n))

    def tell_apart(self) -> None:
        """Track the layout of each image separately if the column's type does not determine it."""
        if isinstance(self.source, Arrays) and not self.source.tensor and getattr(self.kind, "channels", None) is None:
            self.layouts = [None if row in self.faults else layout(self.source.images[row]) for row in range(self.n)]
            self.apart = {own: ImageType(*own) for own in self.layouts if own is not None}

    def step(self, link: int) -> None:
        """Update the type of the images after a link; rows whose images the link does not accept fail.

        Raises:
            PipelineError: the link does not accept columns of this type.
        """
        of = self.links[link]
        beside = [type_of(self.beside[name]) for name in of.reads[1:]]
        made = _made(of, self.kind, beside)
        if made is UNKNOWN:  # an array of objects: assume the most frequent layout
            often = Counter(own for own in self.layouts if own in self.apart).most_common(1)
            made = _made(of, of.like or (self.apart[often[0][0]] if often else ImageType()), beside)
        self.kind = made
        for own, kind in list(self.apart.items()):
            why, fix = "", _MIXED_FIX
            try:
                self.apart[own] = _made(of, kind, beside)
            except PipelineError as error:
                why, fix = error.what, error.fix or fix
            if not why and isinstance(made, TensorType) and self.apart[own] != made:
                why = f"{_shown(self.apart[own])} among those of {_shown(made)}"
            if why:
                del self.apart[own]
                for row, other in enumerate(self.layouts):
                    if other == own:
                        self.fault(row, link, why, fix)

    def results(self) -> dict[str, Column]:
        return {self.links[-1].writes[0]: self.source.column()} | {name: self.beside[name] for name in self.written}


def _made(of: Link, kind: ColumnType, beside: Sequence[ColumnType]) -> ColumnType:
    return as_tuple(of.transform.result(kind, *beside))[0]


def _shown(kind: TensorType) -> str:
    return f"{kind.shape[2]} channel(s) of {kind.dtype}"


# ---- decode ----------------------------------------------------------------------------------------------------------


def _decode(job: _Job, at: int, end: int) -> None:
    """Decode all images, unless spatial operators follow and will decode them. Headers have been read already."""
    del at
    if not _waits(job, end):
        _settle(job, [])


def _waits(job: _Job, at: int) -> bool:
    """Return whether the next link, not counting pixel operators on uint8, is spatial and takes images one by one."""
    reported = getattr(job.kind, "channels", None) is not None  # otherwise the layouts must be determined first
    while reported and at < len(job.links) and _on_bytes(job.links[at]):
        at += 1
    return at < len(job.links) and _family(job.links[at]) is _spatial


def _on_bytes(link: Link) -> bool:
    return _family(link) is _pixels and not isinstance(link.transform, ToFloat | Normalize)


# ---- spatial operators -----------------------------------------------------------------------------------------------


def _spatial(job: _Job, at: int, end: int) -> None:
    sizes = job.source.sizes
    plan: list[RowMoves] = []
    for link in range(at, end):
        moves = _moves(job, link, sizes)
        plan.append(moves)
        sizes = np.maximum(moves.sizes(sizes), 1)  # failed rows may have size 0
        job.step(link)
    _settle(job, plan)


def _moves(job: _Job, link: int, sizes: Sizes) -> RowMoves:
    """Return how a link moves the images, and update the columns of boxes and labels."""
    of = job.links[link]
    assert isinstance(of.transform, Spatial)
    boxes = None
    if len(of.reads) > 1:
        name = of.reads[1]
        if name not in job.boxes:
            job.boxes[name], bad = box_rows(job.beside[name])
            for row, why in bad.items():
                job.fault(row, link, why, _BOXES_FIX)
        boxes = job.boxes[name]
    moves = of.transform.moves(sizes, boxes, job.draws[link])
    for row, why in moves.bad.items():
        job.fault(row, link, why, moves.fix)
    if boxes is not None:
        _follow(job, of, link, moves, sizes, boxes)
    return moves


def _follow(job: _Job, of: Link, link: int, moves: RowMoves, sizes: Sizes, boxes: list[Boxes]) -> None:
    moved = moved_boxes(boxes, moves, sizes, job.faults)
    like = type_of(job.beside[of.reads[1]])
    made = {of.writes[1]: box_column(moved, like if moves.kept is None else thinned(like))}
    for read, write in zip(of.reads[2:], of.writes[2:], strict=True):
        made[write] = job.beside[read]
        if moves.kept is not None:
            made[write], bad = kept_entries(job.beside[read], moves.kept)
            for row, why in bad.items():
                job.fault(row, link, why, _BOXES_FIX)
    for name, column in made.items():
        job.boxes.pop(name, None)
        job.beside[name] = column
        job.written.add(name)
    job.boxes[of.writes[1]] = moved


def _settle(job: _Job, plan: Sequence[RowMoves]) -> None:
    """Compute the pixels of all images after the planned moves."""
    kind, source = job.kind, job.source
    tensor = isinstance(kind, TensorType)
    images: Any = [None] * job.n
    canvas: Room = ReusedImage() if tensor else new_image
    if isinstance(kind, TensorType):
        limits.take(job.n * math.prod(kind.shape) * np.dtype(kind.dtype).itemsize, f"{job.n:,} images")
        images = buffers.empty((job.n, *kind.shape), kind.dtype)
        source.reuse()  # each image is copied into the tensor before the next is decoded
    at_once = isinstance(source, Arrays) and source.tensor and resample_all(source.images, plan, job.good(), images)
    for row in range(0 if at_once else job.n):
        if row in job.faults and (job.faults[row].link == 0 or not source.late):
            continue
        try:
            image, steps = source.image(row, Steps(plan, row))
        except BadImage as bad:
            job.fault(row, 0, bad.why, bad.fix)
            continue
        if row in job.faults:
            continue
        if tensor:
            steps.apply(image, images[row], canvas)
        else:
            images[row] = steps.apply(image)
            limits.take(images[row].nbytes, f"images up to the {row + 1:,}th of {job.n:,}")
    if tensor:
        images[list(job.faults)] = 0
    job.source = Arrays(images, kind)
    if source.late:
        job.tell_apart()


# ---- pixel operators -------------------------------------------------------------------------------------------------


def _pixels(job: _Job, at: int, end: int) -> None:
    source = job.source
    for link in range(at, end):
        job.step(link)
    if isinstance(source, Arrays) and not source.tensor and not job.good():  # there is no image to process
        job.source = Arrays([None] * job.n, job.kind)
        return
    first = isinstance(job.links[end - 1].transform, ChannelsFirst)
    draws = list(job.draws[at : end - first])
    program = compile_pixels([link.transform for link in job.links[at : end - first]], channels_first=first)
    if not isinstance(source, Arrays):
        job.source = PixelSource(source, program.prepared(source.sizes, draws), job.kind)
        return
    if source.tensor:
        job.source = Arrays(program.run(source.images, draws), job.kind)
        return
    rows = job.good()
    index = np.array(rows, dtype=np.int64)
    made = program.run([source.images[row] for row in rows], [d if d is None else d.take(index) for d in draws])
    images: list[Image | None] = [None] * job.n
    for row, image in zip(rows, made, strict=True):
        images[row] = image
    job.source = Arrays(images, job.kind)


# ---- channels first --------------------------------------------------------------------------------------------------


def _channels_first(job: _Job, at: int, end: int) -> None:
    source = job.source
    assert isinstance(source, Arrays)
    assert end == at + 1
    job.step(at)
    if source.tensor:
        images = source.images.transpose(0, 3, 1, 2)
    else:
        images = [None if image is None else image.transpose(2, 0, 1) for image in source.images]
    job.source = Arrays(images, job.kind)


def _family(link: Link) -> Any:
    transform = link.transform
    if isinstance(transform, Spatial):
        return _spatial
    if isinstance(transform, PixelTransform):
        return _pixels
    return _decode if isinstance(transform, Decode) else _channels_first


# ---- blocks of equal images ------------------------------------------------------------------------------------------


def resample_all(images: Image, plan: Sequence[RowMoves], rows: Sequence[int], out: Image) -> bool:
    """Apply moves to rows of a tensor in one kernel call, if they amount to one bilinear resampling of a part.

    Args:
        images: (rows, height, width, channels).
        rows: the rows to process.
        out: uint8 (rows, height, width, channels), contiguous: receives the results.

    Returns:
        True if the results were written; False if the moves do more, or the kernel is still being compiled.
    """
    resampling = _one_resampling(plan, np.broadcast_to(np.array(images.shape[1:3], dtype=np.int64), (len(images), 2)))
    if resampling is None or resampling[2].interpolation != "bilinear" or images.dtype != np.uint8:
        return False
    width, channels = images.shape[2:]
    apart, stride, across, along = images.strides
    if not channels or along != 1 or across != channels or stride < max(width * channels, 4):
        return False
    kernels = compiled("resample")
    if kernels is None:
        return False
    parts, mirrored, how = resampling
    wanted = np.array(rows, dtype=np.int64)
    first = images.__array_interface__["data"][0] + wanted * apart
    kernels.resize_all(
        first, stride, channels, parts[wanted], how.antialias, mirrored[wanted], wanted, out.reshape(*out.shape[:2], -1)
    )
    return True


def _one_resampling(plan: Sequence[RowMoves], sizes: Sizes) -> tuple[Sizes, Mask, Filter] | None:
    """Return each image's part (top, left, height, width), whether the result is mirrored, and the resampling filter.

    None if the moves include anything but one resampling with cuts before it and left-right flips after it.
    """
    parts, mirrored, how = full(sizes), np.zeros(len(sizes), dtype=np.bool_), None
    for moves in plan:
        made = any(part is not None for part in (moves.upend, moves.pad, moves.erase))
        if made or (how is not None and not moves.flips_only):
            return None
        if moves.cut is not None:
            parts = np.concatenate([parts[:, :2] + moves.cut[:, :2], moves.cut[:, 2:]], axis=1)
        if moves.flip is not None:
            if how is None and moves.flip.any():
                return None
            mirrored = mirrored ^ moves.flip
        if moves.size is not None:
            how = moves.filter
    return None if how is None else (parts, mirrored, how)
