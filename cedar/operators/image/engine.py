"""Run one image operator or a chain: first compute the moves of all rows, then process each image once.

Consecutive spatial operators become moves, which are numbers such as the position of a crop. They are computed from
image sizes, which are read from file headers. An image is then decoded only down to the last row that is needed, and
resampled once, directly into the result. Consecutive pixel operators run on all images of the block in one kernel.
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
from cedar.operators.draws import Draws
from cedar.operators.image.boxes import (
    MASKS_FIX,
    Boxes,
    boxes_to_column,
    find_unmoved,
    keep_entries,
    parse_boxes,
    type_after_removal,
)
from cedar.operators.image.decode import Decode
from cedar.operators.image.headers import BadImage
from cedar.operators.image.kernels import compiled
from cedar.operators.image.layout import Allocator, Image, ImageType, Layout, ReusedImage, Sizes, layout_of, new_image
from cedar.operators.image.moves import Mask, RowMoves, Steps, move_boxes, whole_images
from cedar.operators.image.normalize import ChannelsFirst, Normalize, ToFloat
from cedar.operators.image.pixel_transform import PixelTransform
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.resizing import Filter
from cedar.operators.image.sources import Arrays, Files, PixelSource, Source
from cedar.operators.image.spatial import Spatial
from cedar.operators.transform import BadValues, ChainFault, Link, Transform, as_tuple

_BOXES_FIX = "give each image an array of shape (boxes, 4), and one entry per box"
_MIXED_FIX = "convert images to one number of channels and one dtype first, for example by decode(mode='RGB')"


def run_one(transform: Transform, columns: Sequence[Column], draws: Draws | None) -> Any:
    """Run one operator on columns; return its output column, or a tuple if it has several.

    Raises:
        BadValues: the operator fails for some rows.
    """
    names = tuple(str(i) for i in range(len(columns)))
    done, faults = run([Link(transform, names, names)], dict(zip(names, columns, strict=True)), [draws])
    if faults:
        rows = sorted(faults)
        raise BadValues({row: faults[row].why for row in rows}, faults[rows[0]].fix)
    results = tuple(done[name] for name in names)
    return results if len(results) > 1 else results[0]


def run(
    links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
) -> tuple[dict[str, Column], dict[int, ChainFault]]:
    """See ``Chain.run``."""
    order = _run_order(links)
    links, draws = [links[i] for i in order], [draws[i] for i in order]
    job = _BlockState(links, columns, draws)
    begin = 0
    while begin < len(links):
        end = begin + 1
        while end < len(links) and _runner(links[end]) is _runner(links[begin]):
            end += 1
        if _runner(links[begin]) is _pixels and end < len(links) and isinstance(links[end].transform, ChannelsFirst):
            end += 1  # the pass over the pixels also moves channels to the front
        _runner(links[begin])(job, begin, end)
        begin = end
    return job.results(), {row: ChainFault(order[f.link], f.why, f.fix) for row, f in job.faults.items()}


def _run_order(links: Sequence[Link]) -> list[int]:
    """Return the order in which to run links: crops and flips run before pointwise operators, which saves work."""
    order: list[int] = []
    files = isinstance(links[0].transform, Decode) and links[0].transform.channels is not None
    for i, link in enumerate(links):
        position = len(order)
        if files and algebra_of(link.transform) == "spatial":
            while position > 1 and algebra_of(links[order[position - 1]].transform) == "pointwise":
                position -= 1
        order.insert(position, i)
    return order


class _BlockState:
    """The state of one block during a run of a chain."""

    def __init__(self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]) -> None:
        self.links, self.draws = links, draws
        self.other_columns = dict(columns)  # columns of boxes and labels
        first = self.other_columns.pop(links[0].reads[0])
        self.n = len(first)
        self.faults: dict[int, ChainFault] = {}
        self.written: set[str] = set()
        self.boxes: dict[str, list[Boxes]] = {}  # the parsed columns of boxes, by name
        start = links[0].transform
        self.source: Source = Files(first, start, links[0].exact) if isinstance(start, Decode) else Arrays(first)
        for row, bad in self.source.bad.items():
            self.faults[row] = ChainFault(0, bad.why, bad.fix)
        self.kind: ColumnType = self.source.kind
        self.layouts: list[Layout | None] = []  # each row's original layout, if it is not part of the column's type
        self.type_by_layout: dict[Layout, ColumnType] = {}  # original layout -> current type
        self.track_layouts()

    def record_fault(self, row: int, link: int, why: str, fix: str) -> None:
        """Record that a row failed at a link; ignore it if the row has already failed at an earlier link."""
        if row not in self.faults or self.faults[row].link > link:
            self.faults[row] = ChainFault(link, why, fix)

    def good_rows(self) -> list[int]:
        """Return the rows that have not failed."""
        return [row for row in range(self.n) if row not in self.faults] if self.faults else list(range(self.n))

    def track_layouts(self) -> None:
        """If the column's type does not include the layout, determine the layout of each image."""
        if isinstance(self.source, Arrays) and not self.source.tensor and getattr(self.kind, "channels", None) is None:
            self.layouts = [None if row in self.faults else layout_of(self.source.images[row]) for row in range(self.n)]
            self.type_by_layout = {
                image_layout: ImageType(*image_layout) for image_layout in self.layouts if image_layout is not None
            }

    def update_type(self, link: int) -> None:
        """Update the type of the images to that after a link; rows whose images the link does not accept fail.

        Raises:
            PipelineError: the link does not accept columns of this type.
        """
        current_link = self.links[link]
        other_types = [type_of(self.other_columns[name]) for name in current_link.reads[1:]]
        result = _result_type(current_link, self.kind, other_types)
        if result is UNKNOWN:  # in a column of objects, use the most frequent layout
            often = Counter(
                image_layout for image_layout in self.layouts if image_layout in self.type_by_layout
            ).most_common(1)
            result = _result_type(
                current_link,
                current_link.like or (self.type_by_layout[often[0][0]] if often else ImageType()),
                other_types,
            )
        self.kind = result
        for image_layout, kind in list(self.type_by_layout.items()):
            why, fix = "", _MIXED_FIX
            try:
                self.type_by_layout[image_layout] = _result_type(current_link, kind, other_types)
            except PipelineError as error:
                why, fix = error.what, error.fix or fix
            if not why and isinstance(result, TensorType) and self.type_by_layout[image_layout] != result:
                why = f"{_describe_images(self.type_by_layout[image_layout])} in a column of {_describe_images(result)}"
            if why:
                del self.type_by_layout[image_layout]
                for row, other in enumerate(self.layouts):
                    if other == image_layout:
                        self.record_fault(row, link, why, fix)

    def results(self) -> dict[str, Column]:
        return {self.links[-1].writes[0]: self.source.column()} | {
            name: self.other_columns[name] for name in self.written
        }


def _result_type(link: Link, kind: ColumnType, others: Sequence[ColumnType]) -> ColumnType:
    return as_tuple(link.transform.result(kind, *others))[0]


def _describe_images(kind: TensorType) -> str:
    return f"{kind.shape[2]} channel(s) of {kind.dtype}"


# ---- decode ----------------------------------------------------------------------------------------------------------


def _decode(job: _BlockState, begin: int, end: int) -> None:
    """Decode all images, whose headers have been read, unless following spatial operators will decode them."""
    del begin
    if not _decodes_later(job, end):
        _compute_pixels(job, [])


def _decodes_later(job: _BlockState, link: int) -> bool:
    """Return whether the next link, apart from pixel operators on uint8, is spatial and processes images one by one."""
    same_layout = getattr(job.kind, "channels", None) is not None  # if not, layouts must be determined first
    while same_layout and link < len(job.links) and _changes_bytes(job.links[link]):
        link += 1
    return link < len(job.links) and _runner(job.links[link]) is _spatial


def _changes_bytes(link: Link) -> bool:
    return _runner(link) is _pixels and not isinstance(link.transform, ToFloat | Normalize)


# ---- spatial operators -----------------------------------------------------------------------------------------------


def _spatial(job: _BlockState, begin: int, end: int) -> None:
    sizes = job.source.sizes
    plan: list[RowMoves] = []
    for link in range(begin, end):
        moves = _compute_moves(job, link, sizes)
        plan.append(moves)
        sizes = np.maximum(moves.sizes(sizes), 1)  # failed rows may have size 0
        job.update_type(link)
    _compute_pixels(job, plan)


def _compute_moves(job: _BlockState, link: int, sizes: Sizes) -> RowMoves:
    """Return the moves of a link, and update the columns of boxes and labels."""
    spatial_link = job.links[link]
    assert isinstance(spatial_link.transform, Spatial)
    boxes = None
    if len(spatial_link.reads) > 1:
        name = spatial_link.reads[1]
        if name not in job.boxes:
            job.boxes[name], bad = parse_boxes(job.other_columns[name])
            for row, why in bad.items():
                job.record_fault(row, link, why, _BOXES_FIX)
        boxes = job.boxes[name]
    moves = spatial_link.transform.moves(sizes, boxes, job.draws[link])
    for row, why in moves.bad.items():
        job.record_fault(row, link, why, moves.fix)
    if boxes is not None:
        _move_boxes(job, spatial_link, link, moves, sizes, boxes)
    return moves


def _move_boxes(
    job: _BlockState, spatial_link: Link, link: int, moves: RowMoves, sizes: Sizes, boxes: list[Boxes]
) -> None:
    moved = move_boxes(boxes, moves, sizes, job.faults)
    like = type_of(job.other_columns[spatial_link.reads[1]])
    columns = {spatial_link.writes[1]: boxes_to_column(moved, like if moves.kept is None else type_after_removal(like))}
    for read, write in zip(spatial_link.reads[2:], spatial_link.writes[2:], strict=True):
        columns[write] = job.other_columns[read]
        for row, why in find_unmoved(columns[write]).items():
            job.record_fault(row, link, why, MASKS_FIX)
        if moves.kept is not None:
            columns[write], bad = keep_entries(job.other_columns[read], moves.kept)
            for row, why in bad.items():
                job.record_fault(row, link, why, _BOXES_FIX)
    for name, column in columns.items():
        job.boxes.pop(name, None)
        job.other_columns[name] = column
        job.written.add(name)
    job.boxes[spatial_link.writes[1]] = moved


def _compute_pixels(job: _BlockState, plan: Sequence[RowMoves]) -> None:
    """Apply the planned moves to all images."""
    kind, source = job.kind, job.source
    tensor = isinstance(kind, TensorType)
    images: Any = [None] * job.n
    canvas: Allocator = ReusedImage() if tensor else new_image
    if isinstance(kind, TensorType):
        limits.take(job.n * math.prod(kind.shape) * np.dtype(kind.dtype).itemsize, f"{job.n:,} images")
        images = buffers.empty((job.n, *kind.shape), kind.dtype)
        source.reuse()  # an image is copied into the tensor before the next one is decoded
    at_once = (
        isinstance(source, Arrays) and source.tensor and resample_all(source.images, plan, job.good_rows(), images)
    )
    for row in range(0 if at_once else job.n):
        if row in job.faults and (job.faults[row].link == 0 or not source.fails_late):
            continue
        try:
            image, steps = source.image(row, Steps(plan, row))
        except BadImage as bad:
            job.record_fault(row, 0, bad.why, bad.fix)
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
    if source.fails_late:
        job.track_layouts()


# ---- pixel operators -------------------------------------------------------------------------------------------------


def _pixels(job: _BlockState, begin: int, end: int) -> None:
    source = job.source
    for link in range(begin, end):
        job.update_type(link)
    if isinstance(source, Arrays) and not source.tensor and not job.good_rows():  # no images to process
        job.source = Arrays([None] * job.n, job.kind)
        return
    first = isinstance(job.links[end - 1].transform, ChannelsFirst)
    draws = list(job.draws[begin : end - first])
    program = compile_pixels([link.transform for link in job.links[begin : end - first]], channels_first=first)
    if not isinstance(source, Arrays):
        job.source = PixelSource(source, program.prepare(source.sizes, draws), job.kind)
        return
    if source.tensor:
        job.source = Arrays(program.run(source.images, draws), job.kind)
        return
    rows = job.good_rows()
    index = np.array(rows, dtype=np.int64)
    changed = program.run([source.images[row] for row in rows], [d if d is None else d.take(index) for d in draws])
    images: list[Image | None] = [None] * job.n
    for row, image in zip(rows, changed, strict=True):
        images[row] = image
    job.source = Arrays(images, job.kind)


# ---- channels first --------------------------------------------------------------------------------------------------


def _channels_first(job: _BlockState, begin: int, end: int) -> None:
    source = job.source
    assert isinstance(source, Arrays)
    assert end == begin + 1
    job.update_type(begin)
    if source.tensor:
        images = source.images.transpose(0, 3, 1, 2)
    else:
        images = [None if image is None else image.transpose(2, 0, 1) for image in source.images]
    job.source = Arrays(images, job.kind)


def _runner(link: Link) -> Any:
    transform = link.transform
    if isinstance(transform, Spatial):
        return _spatial
    if isinstance(transform, PixelTransform):
        return _pixels
    return _decode if isinstance(transform, Decode) else _channels_first


# ---- blocks of equal images ------------------------------------------------------------------------------------------


def resample_all(images: Image, plan: Sequence[RowMoves], rows: Sequence[int], out: Image) -> bool:
    """Apply moves to rows of a tensor in one kernel call, if the moves are one bilinear resampling of image parts.

    Args:
        images: (rows, height, width, channels).
        rows: indices of the rows to process.
        out: uint8 (rows, height, width, channels), contiguous: receives the results.

    Returns:
        True if the results were written; False if there are other moves, or the kernel is still being compiled.
    """
    resampling = _one_resampling(plan, np.broadcast_to(np.array(images.shape[1:3], dtype=np.int64), (len(images), 2)))
    if resampling is None or resampling[2].interpolation != "bilinear" or images.dtype != np.uint8:
        return False
    width, channels = images.shape[2:]
    image_stride, stride, across, along = images.strides
    if not channels or along != 1 or across != channels or stride < max(width * channels, 4):
        return False
    kernels = compiled("resample")
    if kernels is None:
        return False
    parts, mirrored, how = resampling
    wanted = np.array(rows, dtype=np.int64)
    first = images.__array_interface__["data"][0] + wanted * image_stride
    kernels.resize_all(
        first, stride, channels, parts[wanted], how.antialias, mirrored[wanted], wanted, out.reshape(*out.shape[:2], -1)
    )
    return True


def _one_resampling(plan: Sequence[RowMoves], sizes: Sizes) -> tuple[Sizes, Mask, Filter] | None:
    """Return each image's part (top, left, height, width), whether results are mirrored, and the resampling filter.

    Return None unless the moves are one resampling with cuts before it and left-right flips after it.
    """
    parts, mirrored, how = whole_images(sizes), np.zeros(len(sizes), dtype=np.bool_), None
    for moves in plan:
        unsupported = any(part is not None for part in (moves.flip_vertical, moves.pad, moves.erase))
        if unsupported or (how is not None and not moves.flips_only):
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
