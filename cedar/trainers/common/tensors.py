"""Raw tensors in files, with hashes. Ranks write parts of tensors, and any number of ranks can read different parts.

The files have the safetensors format. Only the safetensors library parses them; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from cedar.core.errors import CedarError
from cedar.trainers.common.files import Damaged, check_readable, sync_folder

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
}
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")


@dataclass(frozen=True, eq=False)
class Part:
    """A rank's part of a tensor."""

    tensor: torch.Tensor  # the values; reading a checkpoint overwrites them
    whole: tuple[int, ...] | None = None  # shape of the whole tensor; None if the part is the whole tensor
    start: tuple[int, ...] | None = None  # index of the part's first value, in each dimension
    alike: bool = False  # whether all ranks have the same values, so that one rank writes them

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return tuple(self.tensor.shape) if self.whole is None else self.whole

    @property
    def box(self) -> Box:
        return Box(self.start or (0,) * self.tensor.dim(), tuple(self.tensor.shape))


@dataclass(frozen=True)
class Box:
    """A rectangular region of a tensor: a start and a length in each dimension."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def meet(self, other: Box) -> Box:
        """Return the intersection with another box, with size 0 if the boxes do not overlap."""
        low = tuple(map(max, self.start, other.start))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.start, self.shape, other.start, other.shape, strict=True))
        return Box(low, tuple(max(0, end - at) for at, end in zip(low, ends, strict=True)))

    def of(self, outer: Box) -> tuple[slice, ...]:
        """Return slices that select this box in an array whose values are those of the box ``outer``."""
        first = (a - b for a, b in zip(self.start, outer.start, strict=True))
        return tuple(slice(at, at + n) for at, n in zip(first, self.shape, strict=True))


@dataclass(frozen=True)
class Piece:
    """A part that was written: its file, its region of the whole tensor, and its hash."""

    file: str
    box: Box
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A tensor's description in the index."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def write_parts(folder: str, name: str, parts: Mapping[str, Part]) -> list[dict[str, Any]]:
    """Write parts to the file ``name``, sync it to disk, and return the parts' index entries as JSON values."""
    values = {key: _plain(part.tensor) for key, part in parts.items() if part.tensor.numel()}
    path = os.path.join(folder, name)
    save_file(values, f"{path}.new")
    with open(f"{path}.new", "rb") as file:
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    sync_folder(folder)
    return [
        {
            "name": key, "dtype": str(part.tensor.dtype).removeprefix("torch."), "whole": list(part.shape),
            "start": list(part.box.start), "shape": list(part.box.shape), "file": name,
            "sha256": hash_of(values[key]) if key in values else "",
        }
        for key, part in parts.items()
    ]  # fmt: skip


def entries_of(reported: Any, where: str) -> dict[str, Entry]:
    """Parse the index entries that ``write_parts`` returned on all ranks.

    Raises:
        Damaged: the entries are invalid or contradict each other.
    """
    entries: dict[str, Entry] = {}
    try:
        for line in reported:
            dtype, whole = _DTYPES[line["dtype"]], _sizes(line["whole"])
            box = Box(_sizes(line["start"]), _sizes(line["shape"]))
            entry = entries.setdefault(str(line["name"]), Entry(dtype, whole, ()))
            if (entry.dtype, entry.shape) != (dtype, whole) or not _inside(box, whole):
                raise ValueError(f"parts of {line['name']!r} contradict each other")
            if not box.size:
                continue
            if not _FILE.fullmatch(line["file"]):
                raise ValueError(f"{line['file']!r} is not the name of a tensor file")
            piece = Piece(line["file"], box, str(line["sha256"]))
            entries[str(line["name"])] = Entry(dtype, whole, (*entry.pieces, piece))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise Damaged(
            f"{where} has invalid tensor entries: {type(error).__name__} {error}",
            done="it was not used", fix="remove it, or use an older one",
        ) from error  # fmt: skip
    return entries


class Reader(ExitStack):
    """Reads the tensor files of a checkpoint and compares each piece with its hash in the index."""

    def __init__(self, folder: str, entries: Mapping[str, Entry]) -> None:
        super().__init__()
        self.folder, self.entries = folder, entries
        self._open: dict[str, Any] = {}

    def check(self, parts: Mapping[str, Part]) -> None:
        """Check that the checkpoint has the tensors of ``parts``, with equal dtypes and shapes, and intact pieces.

        Raises:
            CedarError: a tensor is missing, or has a different dtype or shape.
            Damaged: the content of a file has changed; the message names the file and the tensor.
        """
        odd = []
        for name, part in parts.items():
            entry = self.entries.get(name)
            here = (part.tensor.dtype, part.shape)
            if entry is None:
                odd.append(f"{name} is missing")
            elif (entry.dtype, entry.shape) != here:
                odd.append(f"{name} is {_kind(entry.dtype, entry.shape)}, but {_kind(*here)} in this model")
        if odd:
            raise CedarError(
                f"{self.folder} does not fit this model or its settings: {'; '.join(odd[:8])}",
                done="nothing was loaded",
                fix="resume with the model and settings that it was saved with, or set another run.folder",
            )  # fmt: skip
        for name, part in parts.items():
            size = sum(common.size for _, common, _ in self._pieces(name, part))
            if size != part.box.size:
                raise self._damaged("the index", name, f"has {size} of {part.box.size} values")

    def verify_all(self) -> None:
        """Check every piece in the index, and check that the pieces of each tensor are complete.

        Raises:
            Damaged: see ``check``.
        """
        for name, entry in self.entries.items():
            if sum(piece.box.size for piece in entry.pieces) != math.prod(entry.shape):
                raise self._damaged("the index", name, "is incomplete")
        self.verify_pieces()

    def verify_pieces(self) -> None:
        """Read every piece in the index and check its hash.

        Raises:
            Damaged: see ``check``.
        """
        for name, entry in self.entries.items():
            for piece in entry.pieces:
                self._values(name, piece)

    def read(self, parts: Mapping[str, Part]) -> None:
        """Copy the checkpoint's values to the tensors of ``parts``. Call ``check`` first.

        Raises:
            Damaged: see ``check``.
        """
        with torch.no_grad():
            for name, part in parts.items():
                for value, common, box in self._pieces(name, part):
                    part.tensor[common.of(part.box)].copy_(value[common.of(box)])

    def _pieces(self, name: str, part: Part) -> Iterator[tuple[torch.Tensor, Box, Box]]:
        """Yield (values, overlap, the piece's box) for each piece that overlaps with a part."""
        for piece in self.entries[name].pieces:
            common = piece.box.meet(part.box)
            if common.size:
                yield self._values(name, piece), common, piece.box

    def _values(self, name: str, piece: Piece) -> torch.Tensor:
        path = os.path.join(self.folder, piece.file)
        try:
            if piece.file not in self._open:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    raise self._damaged(piece.file, name, "is not a file")
                with open(path, "rb"):  # safetensors reports every error as a missing file
                    self._open[piece.file] = self.enter_context(safe_open(path, framework="pt"))
            value: torch.Tensor = self._open[piece.file].get_tensor(name)
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            if isinstance(error, OSError):
                check_readable(error, path)
            raise self._damaged(piece.file, name, f"cannot be read: {str(error).splitlines()[0]}") from error
        if (value.dtype, tuple(value.shape)) != (self.entries[name].dtype, piece.box.shape):
            raise self._damaged(piece.file, name, "has another dtype or shape than in the index")
        if hash_of(value) != piece.sha256:
            raise self._damaged(piece.file, name, "does not match its hash")
        return value

    def _damaged(self, file: str, name: str, why: str) -> Damaged:
        return Damaged(
            f"{self.folder} is damaged: the tensor {name!r} in {file} {why}",
            done="nothing was loaded", fix="remove that folder, or take an older checkpoint",
        )  # fmt: skip


def hash_of(value: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    plain: Any = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(plain).hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU tensor with its own storage, as safetensors requires."""
    value = tensor.detach().cpu().contiguous()
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _sizes(reported: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(reported, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in reported):
        raise ValueError(f"{reported!r} is not a shape")
    return tuple(reported)


def _inside(box: Box, whole: tuple[int, ...]) -> bool:
    if not len(box.start) == len(box.shape) == len(whole):
        return False
    return all(at + n <= most for at, n, most in zip(box.start, box.shape, whole, strict=True))


def _kind(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
