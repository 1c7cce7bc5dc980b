"""Moves describe what a spatial operator does to each image of a block; they are computed before decoding.

The same moves are applied to images and boxes, and decoders use them to skip pixels that are not needed.
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
from cedar.operators.image.layout import Allocator, Image, Sizes, new_image
from cedar.operators.image.resizing import Filter, resized

Mask = npt.NDArray[np.bool_]
PadMode = Literal["constant", "edge", "reflect", "symmetric"]


class Move(NamedTuple):
    """The moves of one row as plain numbers; None or False for moves that the row does not have."""

    cut: list[int] | None
    flip: bool
    flip_vertical: bool
    size: tuple[int, int] | None
    pad: list[int] | None
    erase: list[int] | None


_PART, _PAD = ("top", "left", "height", "width"), ("above", "left", "below", "right")
_NO_MOVE = Move(None, False, False, None, None, None)


@dataclass(frozen=True)
class RowMoves:
    """The moves of all rows, applied in this order: cut, flip, resample, pad, erase. None if no row has such a move.

    Args:
        cut: int64 (rows, 4): top, left, height and width of the part to keep, inside the image.
        flip: bool (rows,): mirror left to right.
        flip_vertical: bool (rows,): mirror top to bottom.
        size: int64 (rows, 2): height and width to resample to; an image that has this size is not resampled.
        filter: the filter for resampling.
        pad: int64 (rows, 4): how many pixels to add at the top, left, bottom and right.
        erase: int64 (rows, 4): top, left, height and width of a part to overwrite with ``fill``.
        fill: value of added or erased pixels, one per channel or one for all.
        mode: the padding mode, as in ``numpy.pad``.
        bad: the rows for which the operator fails, with the reasons.
        fix: the advice for errors of ``bad`` rows.
        kept: for each row, a mask of the boxes to keep; None if the row's boxes stay unchanged.
        corner: int64 (rows, 2): position of the result's top left corner in the image, by which boxes are shifted;
            None if it follows from ``cut`` and ``pad``.
    """

    cut: Sizes | None = None
    flip: Mask | None = None
    flip_vertical: Mask | None = None
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
        """Return the heights and widths of images after the moves."""
        after = before
        if self.cut is not None:
            after = self.cut[:, 2:]
        if self.size is not None:
            after = self.size
        if self.pad is not None:
            after = after + self.pad[:, :2] + self.pad[:, 2:]
        return after

    def describe(self) -> list[dict[str, Any]]:
        """Return the cut, flips, padding and erased part of each row, by name."""
        present = self._present()
        described: list[dict[str, Any]] = [{} for _ in (present[0] if present else ())]
        for i, row in enumerate(described):
            for names, part in ((_PART, self.cut), (_PAD, self.pad), (_PART, self.erase)):
                if part is not None:
                    row |= zip(names, part[i].tolist(), strict=True)
            for flip in (self.flip, self.flip_vertical):
                if flip is not None:
                    row["flipped"] = bool(flip[i])
        return described

    @property
    def flips_only(self) -> bool:
        return all(part is None for part in (self.cut, self.flip_vertical, self.size, self.pad, self.erase))

    def row(self, i: int) -> Move:
        """Return the moves of one row."""
        return self._rows[i] if self._rows else _NO_MOVE

    @cached_property
    def _rows(self) -> list[Move]:
        present = self._present()
        nothing = [None] * (len(present[0]) if present else 0)
        cut = nothing if self.cut is None else self.cut.tolist()
        flip = nothing if self.flip is None else self.flip.tolist()
        size = nothing if self.size is None else [(height, width) for height, width in self.size.tolist()]
        flip_vertical = nothing if self.flip_vertical is None else self.flip_vertical.tolist()
        pad = nothing if self.pad is None else [row if any(row) else None for row in self.pad.tolist()]
        erase = nothing if self.erase is None else [row if all(row[2:]) else None for row in self.erase.tolist()]
        rows = zip(cut, flip, flip_vertical, size, pad, erase, strict=True)
        return [Move(c, bool(f), bool(u), s, p, e) for c, f, u, s, p, e in rows]

    def _present(self) -> list[Any]:
        parts = (self.cut, self.flip, self.flip_vertical, self.size, self.pad, self.erase)
        return [part for part in parts if part is not None]


@dataclass(frozen=True)
class Steps:
    """The moves of consecutive spatial operators for one row, to be applied to the row's image."""

    moves: Sequence[RowMoves]
    row: int

    def rows_needed(self, height: int) -> int:
        """Return the number of pixel rows, from the top, that are needed to compute the result."""
        top, tall = 0, height
        for _, move in self._row_moves():
            if move.cut is not None:
                top, tall = top + move.cut[0], move.cut[2]
            if move.flip_vertical or move.size is not None or move.pad is not None:
                break
        return top + tall

    def part_needed(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the part of the image that is needed to compute the result."""
        top, left, tall, wide, mirrored = 0, 0, height, width, False
        for m, (cut, flip, flip_vertical, size, pad, _) in self._row_moves():
            if cut is not None:
                top, left = top + cut[0], left + (wide - cut[1] - cut[3] if mirrored else cut[1])
                tall, wide = cut[2:]
            mirrored ^= flip
            if flip_vertical or size is not None:
                break
            if pad is not None:
                if m.mode != "constant":
                    break  # added pixels may be copies of any pixel in the part
                above, before, below, after = pad
                top, left = top - above, left - (after if mirrored else before)
                tall, wide = tall + above + below, wide + before + after
        bottom, right = min(max(top + tall, 0), height), min(max(left + wide, 0), width)
        top, left = min(max(top, 0), bottom), min(max(left, 0), right)
        return top, left, bottom - top, right - left

    def apply(self, image: Image, out: Image | None = None, allocate: Allocator = new_image) -> Image:
        """Return the image after the moves, as a view if possible; if ``out`` is given, write the result to it.

        Args:
            allocate: allocates memory for padded images; without ``out``, the result may use this memory.
        """
        cut_before = False
        for i, (m, move) in enumerate(self._row_moves()):
            if move.cut is not None and not cut_before:
                top, left, tall, wide = move.cut
                image = image[top : top + tall, left : left + wide]
            if move.flip:
                image = image[:, ::-1]
            if move.flip_vertical:
                image = image[::-1]
            if move.size is not None and image.shape[:2] != move.size:
                mirrored = self.flips_after(i)
                if mirrored is not None:
                    return resized(image, move.size, m.filter, out=out, flip=mirrored)
                image = resized(image, move.size, m.filter)
            cut_before = False
            if move.pad is not None:
                after = self.moves[i + 1] if i + 1 < len(self.moves) else None
                part = None if after is None else after.row(self.row).cut  # fill only this part of the padded image
                image, cut_before = pad_image(image, move.pad, m.fill, m.mode, part, allocate), part is not None
                allocate = new_image  # the next padding reads this memory, so it needs its own
            if move.erase is not None:
                top, left, tall, wide = move.erase
                image = image.copy()
                image[top : top + tall, left : left + wide] = m.fill
        if out is None:
            return image
        np.copyto(out, image)
        return out

    def flips_after(self, index: int) -> bool | None:
        """Return whether later moves mirror the resampled image left to right; None if they do anything else."""
        move, later_moves = self.moves[index].row(self.row), self.moves[index + 1 :]
        if move.pad is not None or move.erase is not None or not all(later.flips_only for later in later_moves):
            return None
        return sum(later.row(self.row).flip for later in later_moves) % 2 == 1

    def moves_after(self, index: int) -> Steps:
        """Return the moves after the resampling of a move."""
        first = replace(self.moves[index], cut=None, flip=None, flip_vertical=None, size=None)
        return Steps((first, *self.moves[index + 1 :]), self.row)

    def resampling(self, height: int, width: int) -> tuple[int, tuple[int, int, int, int], bool] | None:
        """Return the index of the first move that resamples, the image part it resamples, and whether that is mirrored.

        Return None if no move resamples, or if an earlier move pads, erases or flips top to bottom.
        """
        part, mirrored = (0, 0, height, width), False
        for i, (_, move) in enumerate(self._row_moves()):
            if move.cut is not None:
                top, left, tall, wide = move.cut
                left = part[3] - left - wide if mirrored else left
                part = (part[0] + top, part[1] + left, tall, wide)
            mirrored ^= move.flip
            if move.flip_vertical:
                return None
            if move.size is not None:
                return i, part, mirrored
            if move.pad is not None or move.erase is not None:
                return None
        return None

    def _row_moves(self) -> Iterator[tuple[RowMoves, Move]]:
        for m in self.moves:
            yield m, m.row(self.row)


def pad_image(
    image: Image,
    pad: Sequence[int],
    fill: tuple[float, ...],
    mode: PadMode,
    part: Sequence[int] | None,
    allocate: Allocator,
) -> Image:
    """Pad an image at the top, left, bottom and right; ``part`` (top, left, height, width) limits the result."""
    above, before, below, after = pad
    height, width, channels = image.shape
    top, left, tall, wide = part or (0, 0, height + above + below, width + before + after)
    if mode != "constant":
        padded = np.pad(image, ((above, below), (before, after), (0, 0)), mode=mode)
        return padded[top : top + tall, left : left + wide]
    shape = (tall, wide, channels)
    canvas = allocate(shape) if image.dtype == np.uint8 else np.empty(shape, dtype=image.dtype)
    line = np.empty((wide, channels), dtype=image.dtype)
    line[:] = np.array(fill, dtype=np.float64).astype(image.dtype)
    # Rows y0 to y1 and columns x0 to x1 of the part are copied from the image.
    y0, y1 = (min(max(edge - top, 0), tall) for edge in (above, above + height))
    x0, x1 = (min(max(edge - left, 0), wide) for edge in (before, before + width))
    canvas[:y0], canvas[y1:] = line, line
    canvas[y0:y1, :x0], canvas[y0:y1, x1:] = line[:x0], line[x1:]
    if y0 < y1 and x0 < x1:
        y, x = top - above, left - before
        canvas[y0:y1, x0:x1] = image[y + y0 : y + y1, x + x0 : x + x1]
    return canvas


def move_boxes(boxes: Sequence[Boxes], moves: RowMoves, sizes: Sizes, failed: Container[int] = ()) -> list[Boxes]:
    """Return each row's boxes (left, top, right, bottom) in pixels after the moves; failed rows keep their boxes.

    As in torchvision, crops and padding clamp boxes to the image; flips and resizing do not.

    Args:
        sizes: heights and widths of the images before the moves.
    """
    kept, moved = moves.kept, list(boxes)
    rows = [i for i in range(len(moved)) if i not in failed and (kept is None or kept[i] is not None)]
    if kept is not None:
        for i in rows:
            moved[i] = moved[i][kept[i]]
    counts = [len(moved[i]) for i in rows]
    flat = np.concatenate([np.zeros((0, 4), dtype=np.float32), *(moved[i] for i in rows)])
    flat = _move_all_boxes(flat, moves, np.repeat(np.array(rows, dtype=np.int64), counts), sizes)
    end = 0
    for i, count in zip(rows, counts, strict=True):
        moved[i], end = flat[end : end + count], end + count
    return moved


def _move_all_boxes(boxes: Boxes, moves: RowMoves, row: Index, sizes: Sizes) -> Boxes:
    """Return all boxes after the moves; ``row`` has the row index of each box. ``boxes`` may be overwritten."""
    size = sizes[row]
    if moves.corner is not None:
        assert moves.cut is not None
        ends = moves.cut[row, 2:]
        if moves.pad is not None:
            ends = ends + moves.pad[row, :2] + moves.pad[row, 2:]
        return _shift_and_clamp(boxes, -moves.corner[row], ends)
    if moves.cut is not None:
        size = moves.cut[row, 2:]
        boxes = _shift_and_clamp(boxes, -moves.cut[row, :2], size)
    for flips, axis in ((moves.flip, 0), (moves.flip_vertical, 1)):
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
        boxes[padded_rows] = _shift_and_clamp(
            boxes[padded_rows], pad[:, :2], size[padded_rows] + pad[:, :2] + pad[:, 2:]
        )
    return boxes


def _shift_and_clamp(boxes: Boxes, by: Sizes, sizes: Sizes) -> Boxes:
    """Shift boxes down and to the right, and clamp them to images of the given heights and widths."""
    boxes = boxes + np.tile(by[:, ::-1].astype(np.float32), 2)
    height, width = sizes.astype(np.float32).T[:, :, None]
    np.clip(boxes[:, 0::2], 0, width, out=boxes[:, 0::2])
    np.clip(boxes[:, 1::2], 0, height, out=boxes[:, 1::2])
    return boxes


def whole_images(sizes: Sizes) -> Sizes:
    """Return cuts of whole images: int64 (rows, 4)."""
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)
