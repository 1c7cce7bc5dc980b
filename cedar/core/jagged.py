"""JaggedTensor: rows of different lengths as one array of values and their offsets, in NumPy or torch."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from copy import copy
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from cedar.core.errors import CedarError, PipelineError, RowError

_registered: set[tuple[str, type]] = set()
_SCALARS = (str, bytes, int, float, type(None))


class Container:
    """A dataclass that holds arrays, with the methods that JAX requires of a pytree."""

    __slots__ = ()
    fixed: ClassVar[str] = ""  # the name of the field without arrays

    def tree_flatten(self: Any) -> tuple[tuple[Any, ...], Any]:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        fixed = parts.pop(self.fixed, None)
        return tuple(parts.values()), fixed

    @classmethod
    def tree_unflatten(cls, fixed: Any, parts: Any) -> Self:
        """Build an instance without checks, since frameworks replace arrays by other objects."""
        made, rest = object.__new__(cls), iter(parts)
        for field in fields(cls):  # type: ignore[arg-type]
            object.__setattr__(made, field.name, fixed if field.name == cls.fixed else next(rest))
        return made


def register(*kinds: type[Container]) -> None:
    """Register classes with torch and JAX if these are loaded. Called whenever batches are requested."""
    for module in ("torch.utils._pytree", "jax.tree_util"):
        add: Any = None if module not in sys.modules else vars(sys.modules[module]).get("register_pytree_node")
        for kind in () if add is None else kinds:  # ``add`` is None while the module is being imported
            if (module, kind) in _registered:
                continue
            _registered.add((module, kind))
            if module == "jax.tree_util":
                add(kind, kind.tree_flatten, kind.tree_unflatten)
            else:
                add(
                    kind,
                    kind.tree_flatten,
                    lambda parts, fixed, kind=kind: kind.tree_unflatten(fixed, parts),
                    serialized_type_name=f"cedar.{kind.__name__}",
                )


@dataclass(frozen=True, eq=False, slots=True)
class JaggedTensor(Container):
    """Lists of different lengths: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Args:
        values: the values of all rows, concatenated: an ndarray or tensor of shape (total, ...), a list, a dict of
            these (for lists of structs), or a JaggedTensor (for lists of lists).
        offsets: int64[rows + 1], ascending from 0 to total; of the same framework as ``values``.

    Raises:
        PipelineError: the offsets are not one-dimensional, or are empty.

    Examples:
        >>> import numpy as np
        >>> from cedar.core.jagged import JaggedTensor
        >>> ids = JaggedTensor(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
        >>> len(ids), ids[0].tolist(), ids.lengths().tolist()
        (3, [7, 8], [2, 0, 1])
        >>> ids.to_padded().tolist()
        [[7, 8], [0, 0], [9, 0]]
    """

    values: Any
    offsets: Any

    def __init__(self, values: Any, offsets: Any) -> None:
        if offsets.ndim != 1 or offsets.shape[0] == 0:
            raise PipelineError(
                f"JaggedTensor: offsets have shape {tuple(offsets.shape)}",
                fix="give rows + 1 offsets in one dimension, starting with 0",
            )
        object.__setattr__(self, "values", values)  # the class is frozen
        object.__setattr__(self, "offsets", offsets)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.offsets.shape[0]) - 1

    def __getitem__(self, row: int) -> Any:
        """Return the values of a row without a copy; raises IndexError outside the rows."""
        rows = len(self)
        index = row + rows if row < 0 else row
        if not 0 <= index < rows:
            raise IndexError(f"row {row} of {rows}")
        return _cut(self.values, int(self.offsets[index]), int(self.offsets[index + 1]))

    def __iter__(self) -> Iterator[Any]:
        offsets = self.offsets.tolist()
        for start, stop in pairwise(offsets):
            yield _cut(self.values, start, stop)

    def __eq__(self, other: object) -> bool:
        """Return True for equal offsets and values (NaN equals NaN) of the same framework and dtype."""
        if not isinstance(other, JaggedTensor):
            return NotImplemented
        return same(self.offsets, other.offsets) and same(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kind = getattr(self.values, "dtype", None) or type(self.values).__name__
        rows = []
        for _, row in zip(range(4), self, strict=False):
            if isinstance(row, dict):
                rows.append("{...}")
            else:
                rows.append(str(_plain(row)) if len(row) <= 8 else f"[{len(row)} values]")
        more = ", ..." if len(self) > 4 else ""
        return f"JaggedTensor([{', '.join(rows)}{more}], rows={len(self)}, values={kind})"

    def lengths(self) -> Any:
        """Return the length of each row: int64[rows], of the framework of ``offsets``."""
        return self.offsets[1:] - self.offsets[:-1]

    def to_list(self) -> list[Any]:
        """Return the rows as Python lists."""
        return [_plain(row) for row in self]

    def to_padded(self, length: int | None = None, value: Any = 0) -> Any:
        """Return the rows as one array of shape (rows, length, ...), with short rows filled with ``value``.

        Args:
            length: the length of each row; None means the length of the longest row.
            value: the padding value, cast to the dtype of the values.

        Raises:
            RowError: a row is longer than ``length``.
            PipelineError: the values are not one array of numbers.
        """
        offsets = on_host(self.offsets)
        values = on_host(self.values) if is_array(self.values) else None
        if values is None or values.dtype == object:
            raise PipelineError(
                f"to_padded: the values are {type(self.values).__name__}, not an array of numbers",
                fix="pad the innermost lists: .values of a list of lists, or one entry of a dict",
            )
        lengths = np.diff(offsets)
        longest = int(lengths.max(initial=0))
        if length is None:
            length = longest
        elif longest > length:
            row = int(np.argmax(lengths > length))
            raise RowError(
                f"to_padded({length}): row {row} has {int(lengths[row])} values",
                fix="use a larger length, or cut the lists first: col(name).list.head(n)",
            )
        padded = pad_values(values[offsets[0] : offsets[-1]], lengths, length, value)
        if isinstance(self.values, np.ndarray):
            return padded
        import torch

        return torch.from_numpy(padded).to(self.values.device)

    def to(self, *args: Any, **kwargs: Any) -> JaggedTensor:
        """Apply ``torch.Tensor.to`` to values and offsets; a dtype only changes the values."""
        values = each(self.values, lambda v: v.to(*args, **kwargs))
        return JaggedTensor(values, self.offsets.to(**device_arguments(self.offsets, args, kwargs)))

    def pin_memory(self) -> JaggedTensor:
        """Copy to page-locked memory, from which copies to a device run in the background."""
        return JaggedTensor(each(self.values, lambda v: v.pin_memory()), self.offsets.pin_memory())

    def to_torch(self) -> JaggedTensor:
        """Convert arrays to tensors, which share their memory if it is writable."""
        import torch

        return JaggedTensor(each(self.values, torch.as_tensor), torch.as_tensor(self.offsets))

    def to_arrow(self) -> pa.Array:
        """Convert to a LargeListArray, without a copy of NumPy values."""
        offsets = pa.array(on_host(self.offsets).astype(np.int64, copy=False))
        return pa.LargeListArray.from_arrays(offsets, _arrow(self.values))

    def to_torchrec(self) -> Any:
        """Convert to a ``torchrec.JaggedTensor`` of the same values and offsets.

        Raises:
            CedarError: torchrec cannot be imported.
        """
        tensors = self.to_torch()
        return torchrec_tensors().JaggedTensor(
            values=tensors.values, offsets=tensors.offsets, lengths=tensors.lengths()
        )


def torchrec_tensors() -> Any:
    """Import torchrec's module of tensor classes, and suppress the warnings that the import raises.

    Raises:
        CedarError: torchrec is not installed, or its import fails. It needs an fbgemm-gpu that matches torch.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torchrec.sparse.jagged_tensor")
    except Exception as error:  # without a matching fbgemm, the import fails in many ways
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torchrec"
        why = "torchrec is not installed" if missing else f"torchrec cannot be imported: {error}"
        raise CedarError(
            f"to_torchrec: {why}",
            fix="install torchrec and the fbgemm-gpu that fits your torch, or use .values and .offsets as they are",
        ) from error


def pad_values(values: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], to: int, value: Any) -> Any:
    """Pad rows of the given ``lengths``, each at most ``to``, and return an array (rows, to, ...)."""
    padded = np.full((len(lengths), to, *values.shape[1:]), value, dtype=values.dtype)
    if len(values) == len(lengths) * to:  # every row is full
        return values.reshape(padded.shape).copy()
    padded[np.arange(to) < lengths[:, None]] = values
    return padded


def is_array(values: Any) -> bool:
    """Whether this is an ndarray or a tensor."""
    return isinstance(values, np.ndarray) or hasattr(values, "detach")


def on_host(values: Any) -> Any:
    """Return an ndarray, copied from the device of a tensor if necessary."""
    return values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()


def to_compare(values: Any) -> Any:
    """Return an ndarray of the values of an array or tensor; dtypes that NumPy lacks (bfloat16) become float32."""
    try:
        return on_host(values)
    except TypeError:
        return on_host(values.float())


def _cut(values: Any, start: int, stop: int) -> Any:
    if isinstance(values, dict):
        return {name: _cut(child, start, stop) for name, child in values.items()}
    if isinstance(values, JaggedTensor):
        offsets = values.offsets[start : stop + 1]
        return JaggedTensor(_cut(values.values, int(offsets[0]), int(offsets[-1])), offsets - offsets[0])
    return values[start:stop]


def _plain(values: Any) -> Any:
    if isinstance(values, dict):
        columns = [_plain(child) for child in values.values()]
        return [dict(zip(values, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(values, JaggedTensor):
        return values.to_list()
    return values.tolist() if is_array(values) else list(values)


def each(values: Any, fn: Any) -> Any:
    """Apply ``fn`` to each array inside nested values; other objects stay the same."""
    if type(values) is dict:
        return {name: each(child, fn) for name, child in values.items()}
    if isinstance(values, MutableMapping):  # such as the batches of Hugging Face's collators
        copied = copy(values)
        copied.update({name: each(child, fn) for name, child in values.items()})
        return copied
    if isinstance(values, list | tuple) and not all(issubclass(kind, _SCALARS) for kind in set(map(type, values))):
        items = [each(item, fn) for item in values]
        return type(values)(*items) if hasattr(values, "_fields") else type(values)(items)
    if isinstance(values, Container):
        parts, fixed = values.tree_flatten()
        return values.tree_unflatten(fixed, [each(part, fn) for part in parts])
    return fn(values) if is_array(values) and values.dtype != object else values


def device_arguments(like: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return only the device from arguments of ``Tensor.to``, since offsets and indices keep their dtype."""
    device = like.new_empty(0).to(*args, **kwargs).device  # let torch parse the arguments
    return {"device": device, "non_blocking": bool(kwargs.get("non_blocking"))}


def _arrow(values: Any) -> pa.Array:
    from cedar.core.convert import to_arrow

    if isinstance(values, JaggedTensor):
        return values.to_arrow()
    if isinstance(values, dict):
        return pa.StructArray.from_arrays([_arrow(child) for child in values.values()], names=list(values))
    return to_arrow(on_host(values), "values") if is_array(values) else pa.array(values)


def same(left: Any, right: Any) -> bool:
    """Return True if both values are equal and have the same framework and dtype; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, JaggedTensor) or not is_array(left):
        return bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    a, b = to_compare(left), to_compare(right)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM"))


def gather(values: Any, offsets: Any, rows: Any) -> tuple[Any, Any]:
    """Return (values, offsets) of the rows ``rows``, in that order; a row may occur several times.

    Args:
        values: as in a JaggedTensor: an array or tensor (total, ...), a list, a dict of these, or a JaggedTensor.
        offsets: int64[rows + 1].
        rows: integers [n], of the same framework as ``offsets``.

    Examples:
        >>> import numpy as np
        >>> values, offsets = gather(np.array([7, 8, 9]), np.array([0, 2, 3]), np.array([1, 0, 1]))
        >>> values.tolist(), offsets.tolist()
        ([9, 7, 8, 9], [0, 1, 3, 4])
    """
    starts = offsets[:-1][rows]
    lengths = offsets[1:][rows] - starts
    new: Any
    places: Any
    if isinstance(offsets, np.ndarray):
        places, new = stretches(starts, lengths)
    else:
        import torch

        new = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=offsets.device)
        torch.cumsum(lengths, 0, out=new[1:])
        total = int(new[-1])
        shifts = torch.repeat_interleave(starts - new[:-1], lengths, output_size=total)
        places = shifts + torch.arange(total, device=offsets.device)
    return pick(values, places), new


def stretches(starts: Any, lengths: Any) -> tuple[Any, Any]:
    """Return the positions of the values of ranges, in NumPy: (positions int64[total], offsets int64[ranges + 1]).

    Examples:
        >>> places, offsets = stretches(np.array([7, 2]), np.array([2, 1]))
        >>> places.tolist(), offsets.tolist()
        ([7, 8, 2], [0, 2, 3])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(starts - offsets[:-1], lengths)
    places += np.arange(offsets[-1], dtype=np.int64)
    return places, offsets


def pick(values: Any, places: Any) -> Any:
    """Return the values at the positions ``places``."""
    if isinstance(values, dict):
        return {name: pick(child, places) for name, child in values.items()}
    if isinstance(values, JaggedTensor):
        return JaggedTensor(*gather(values.values, values.offsets, places))
    if isinstance(values, list):
        return [values[i] for i in places.tolist()]
    return values[places]
