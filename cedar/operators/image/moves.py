"""Moves: what a spatial operator does to each image of a block, as numbers, before any pixel is touched.

Pixels, boxes and the decoder all follow the same moves.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cedar.core.columns import Index
from cedar.operators.image.boxes import Boxes
from cedar.operators.image.layout import Image, Room, Sizes, new_image
from cedar.operators.image.resizing import Filter, resized

Mask = npt.NDArray[np.bool_]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]


class Move(NamedTuple):
    """The moves of one row as plain numbers; None if there is nothing to do."""

    cut: list[int] | None
    flip: bool
    upend: bool
    size: tuple[int, int] | None
    pad: list[int] | None
    erase: list[int] | None


_PART, _PAD = ("top", "left", "height", "width"), ("above", "left", "below", "right")
_STILL = Move(None, False, False, None, None, None)


@dataclass(frozen=True)
class RowMoves:
    """For each row, in this order: cut out a part, flip it, resample it, pad it, erase a part. None: no row does.

    Args:
        cut: int64 (rows, 4): top, left, height and width of the part, inside the image.
        flip: bool (rows,): mirror it, left to right.
        upend: bool (rows,): mirror it, top to bottom.
        size: int64 (rows, 2): height and width to resample it to; no resampling where it has that size.
        filter: how to resample.
        pad: int64 (rows, 4): pixels to add on top, left, bottom and right.
        erase: int64 (rows, 4): top, left, height and width of a part that becomes ``fill``.
        fill: of the pixels added or erased, one for each channel, or one for all.
        mode: where the added pixels come from.
        bad: rows that cannot be moved, and why.
        fix: what to do about them.
        kept: for each row the boxes that stay, where some go; None: the row's boxes are left unchanged.
        corner: int64 (rows, 2): where the result's top left is in the image, for boxes, where ``cut`` and ``pad``
            together do not tell.
    """

    cut: Sizes | None = None
    flip: Mask | None = None
    upend: Mask | None = None
    size: Sizes | None = None
    filter: Filter = field(default_factory=Filter)
    pad: Sizes | None = None
    erase: Sizes | None = None
    fill: tuple[float, ...] = (0,)
    mode: PadMode = "constant"
    bad: dict[int, str] = field(default_factory=dict)
    fix: str = ""
    kept: Sequence[Mask | None] | None = None
    corner: Sizes | None = None

    def sizes(self, before: Sizes) -> Sizes:
        """Heights and widths afterwards."""
        after = before
        if self.cut is not None:
            after = self.cut[:, 2:]
        if self.size is not None:
            after = self.size
        if self.pad is not None:
            after = after + self.pad[:, :2] + self.pad[:, 2:]
        return after

    def describe(self) -> list[dict[str, Any]]:
        """The part, the flips, the added and the erased pixels of each row, by name."""
        given = self._given()
        reported: list[dict[str, Any]] = [{} for _ in (given[0] if given else ())]
        for i, row in enumerate(reported):
            for names, part in ((_PART, self.cut), (_PAD, self.pad), (_PART, self.erase)):
                if part is not None:
                    row |= zip(names, part[i].tolist(), strict=True)
            for flip in (self.flip, self.upend):
                if flip is not None:
                    row["flipped"] = bool(flip[i])
        return reported

    @property
    def flips_only(self) -> bool:
        return all(part is None for part in (self.cut, self.upend, self.size, self.pad, self.erase))

    def row(self, i: int) -> Move:
        """What one row does."""
        return self._rows[i] if self._rows else _STILL

    @cached_property
    def _rows(self) -> list[Move]:
        given = self._given()
        nothing = [None] * (len(given[0]) if given else 0)
        cut = nothing if self.cut is None else self.cut.tolist()
        flip = nothing if self.flip is None else self.flip.tolist()
        size = nothing if self.size is None else [(height, width) for height, width in self.size.tolist()]
        upend = nothing if self.upend is None else self.upend.tolist()
        pad = nothing if self.pad is None else [own if any(own) else None for own in self.pad.tolist()]
        erase = nothing if self.erase is None else [own if all(own[2:]) else None for own in self.erase.tolist()]
        rows = zip(cut, flip, upend, size, pad, erase, strict=True)
        return [Move(c, bool(f), bool(u), s, p, e) for c, f, u, s, p, e in rows]

    def _given(self) -> list[Any]:
        parts = (self.cut, self.flip, self.upend, self.size, self.pad, self.erase)
        return [part for part in parts if part is not None]


@dataclass(frozen=True)
class Steps:
    """The moves of one row of consecutive spatial operators, ready to be applied to its image."""

    moves: Sequence[RowMoves]
    row: int

    def rows_needed(self, height: int) -> int:
        """How many rows of the image are needed, from the top: none below is inspected."""
        top, tall = 0, height
        for _, own in self._own():
            if own.cut is not None:
                top, tall = top + own.cut[0], own.cut[2]
            if own.upend or own.size is not None or own.pad is not None:
                break
        return top + tall

    def part_needed(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width of the part of an image outside which no pixel is inspected."""
        top, left, tall, wide, mirrored = 0, 0, height, width, False
        for m, (cut, flip, upend, size, pad, _) in self._own():
            if cut is not None:
                top, left = top + cut[0], left + (wide - cut[1] - cut[3] if mirrored else cut[1])
                tall, wide = cut[2:]
            mirrored ^= flip
            if upend or size is not None:
                break
            if pad is not None:
                if m.mode != "constant":
                    break  # what is added comes from anywhere
                above, before, below, behind = pad
                top, left = top - above, left - (behind if mirrored else before)
                tall, wide = tall + above + below, wide + before + behind
        bottom, right = min(max(top + tall, 0), height), min(max(left + wide, 0), width)
        top, left = min(max(top, 0), bottom), min(max(left, 0), right)
        return top, left, bottom - top, right - left

    def apply(self, image: Image, out: Image | None = None, canvas: Room = new_image) -> Image:
        """The moved image: a view of the given one where no move makes pixels; in ``out``, where that is given.

        Args:
            canvas: where to get memory for an image with pixels added; the result may lie in it, unless in ``out``.
        """
        cut_before = False
        for i, (m, own) in enumerate(self._own()):
            if own.cut is not None and not cut_before:
                top, left, tall, wide = own.cut
                image = image[top : top + tall, left : left + wide]
            if own.flip:
                image = image[:, ::-1]
            if own.upend:
                image = image[::-1]
            if own.size is not None and image.shape[:2] != own.size:
                mirrored = self.flips_behind(i)
                if mirrored is not None:
                    return resized(image, own.size, m.filter, out=out, flip=mirrored)
                image = resized(image, own.size, m.filter)
            cut_before = False
            if own.pad is not None:
                after = self.moves[i + 1] if i + 1 < len(self.moves) else None
                part = None if after is None else after.row(self.row).cut  # no more of the canvas is made
                image, cut_before = padded(image, own.pad, m.fill, m.mode, part, canvas), part is not None
                canvas = new_image  # the next one is made of this one
            if own.erase is not None:
                top, left, tall, wide = own.erase
                image = image.copy()
                image[top : top + tall, left : left + wide] = m.fill
        if out is None:
            return image
        np.copyto(out, image)
        return out

    def flips_behind(self, at: int) -> bool | None:
        """Whether the image is mirrored behind the resampling of a move; None if more than that is done."""
        own, rest = self.moves[at].row(self.row), self.moves[at + 1 :]
        if own.pad is not None or own.erase is not None or not all(later.flips_only for later in rest):
            return None
        return sum(later.row(self.row).flip for later in rest) % 2 == 1

    def behind(self, at: int) -> Steps:
        """What is left behind the resampling of a move."""
        first = replace(self.moves[at], cut=None, flip=None, upend=None, size=None)
        return Steps((first, *self.moves[at + 1 :]), self.row)

    def resampling(self, height: int, width: int) -> tuple[int, tuple[int, int, int, int], bool] | None:
        """Which move resamples the image first, which part of it (top, left, height, width), and whether mirrored.

        None: no move does, or pixels are added or erased before, or it is on its head.
        """
        part, mirrored = (0, 0, height, width), False
        for i, (_, own) in enumerate(self._own()):
            if own.cut is not None:
                top, left, tall, wide = own.cut
                left = part[3] - left - wide if mirrored else left
                part = (part[0] + top, part[1] + left, tall, wide)
            mirrored ^= own.flip
            if own.upend:
                return None
            if own.size is not None:
                return i, part, mirrored
            if own.pad is not None or own.erase is not None:
                return None
        return None

    def _own(self) -> Iterator[tuple[RowMoves, Move]]:
        for m in self.moves:
            yield m, m.row(self.row)


def padded(
    image: Image, pad: Sequence[int], fill: tuple[float, ...], mode: PadMode, part: Sequence[int] | None, room: Room
) -> Image:
    """An image with pixels added on top, left, bottom and right; of that a part (top, left, height, width) alone."""
    above, before, below, behind = pad
    height, width, channels = image.shape
    top, left, tall, wide = part or (0, 0, height + above + below, width + before + behind)
    if mode != "constant":
        whole = np.pad(image, ((above, below), (before, behind), (0, 0)), mode=mode)
        return whole[top : top + tall, left : left + wide]
    shape = (tall, wide, channels)
    canvas = room(shape) if image.dtype == np.uint8 else np.empty(shape, dtype=image.dtype)
    line = np.empty((wide, channels), dtype=image.dtype)
    line[:] = np.array(fill, dtype=np.float64).astype(image.dtype)
    # Rows y0 to y1 and columns x0 to x1 of the part are the image's.
    y0, y1 = (min(max(edge - top, 0), tall) for edge in (above, above + height))
    x0, x1 = (min(max(edge - left, 0), wide) for edge in (before, before + width))
    canvas[:y0], canvas[y1:] = line, line
    canvas[y0:y1, :x0], canvas[y0:y1, x1:] = line[:x0], line[x1:]
    if y0 < y1 and x0 < x1:
        y, x = top - above, left - before
        canvas[y0:y1, x0:x1] = image[y + y0 : y + y1, x + x0 : x + x1]
    return canvas


def moved_boxes(boxes: Sequence[Boxes], moves: RowMoves, sizes: Sizes, failed: Container[int] = ()) -> list[Boxes]:
    """Boxes (left, top, right, bottom) in pixels of each row, after its moves; those of failed rows as they are.

    As in torchvision: crops and padding clamp them to the image, flips and resizing do not.

    Args:
        sizes: heights and widths of the images before.
    """
    kept, moved = moves.kept, list(boxes)
    rows = [i for i in range(len(moved)) if i not in failed and (kept is None or kept[i] is not None)]
    if kept is not None:
        for i in rows:
            moved[i] = moved[i][kept[i]]
    counts = [len(moved[i]) for i in rows]
    flat = np.concatenate([np.zeros((0, 4), dtype=np.float32), *(moved[i] for i in rows)])
    flat = _moved(flat, moves, np.repeat(np.array(rows, dtype=np.int64), counts), sizes)
    end = 0
    for i, count in zip(rows, counts, strict=True):
        moved[i], end = flat[end : end + count], end + count
    return moved


def _moved(boxes: Boxes, moves: RowMoves, row: Index, sizes: Sizes) -> Boxes:
    """Boxes after the moves of their rows, all together; the given ones may be written to."""
    size = sizes[row]
    if moves.corner is not None:
        assert moves.cut is not None
        ends = moves.cut[row, 2:]
        if moves.pad is not None:
            ends = ends + moves.pad[row, :2] + moves.pad[row, 2:]
        return _shifted(boxes, -moves.corner[row], ends)
    if moves.cut is not None:
        size = moves.cut[row, 2:]
        boxes = _shifted(boxes, -moves.cut[row, :2], size)
    for flips, axis in ((moves.flip, 0), (moves.upend, 1)):
        if flips is not None:
            turned = flips[row]
            mirrored = -(boxes[turned][:, [axis + 2, axis]] - size[turned, 1 - axis, None].astype(np.float32))
            boxes[turned, axis], boxes[turned, axis + 2] = mirrored[:, 0], mirrored[:, 1]
    if moves.size is not None:
        after = moves.size[row]
        boxes = boxes * np.tile((after / size)[:, ::-1].astype(np.float32), 2)
        size = after
    if moves.pad is not None:
        pad = moves.pad[row]
        padded_rows = pad.any(axis=1)
        pad = pad[padded_rows]
        boxes[padded_rows] = _shifted(boxes[padded_rows], pad[:, :2], size[padded_rows] + pad[:, :2] + pad[:, 2:])
    return boxes


def _shifted(boxes: Boxes, by: Sizes, sizes: Sizes) -> Boxes:
    """Boxes moved down and right, then cut to images of some heights and widths."""
    boxes = boxes + np.tile(by[:, ::-1].astype(np.float32), 2)
    height, width = sizes.astype(np.float32).T[:, :, None]
    np.clip(boxes[:, 0::2], 0, width, out=boxes[:, 0::2])
    np.clip(boxes[:, 1::2], 0, height, out=boxes[:, 1::2])
    return boxes


def full(sizes: Sizes) -> Sizes:
    """Cuts that keep everything: int64 (rows, 4)."""
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)
