"""InverseKeyedJaggedTensor: several list features whose rows repeat, with each distinct row stored once.

RecD introduced this format (Zhao et al., 2022, arXiv 2211.05239).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from cedar.core.distinct import distinct, renumber
from cedar.core.errors import PipelineError
from cedar.core.jagged import (
    Container,
    JaggedTensor,
    device_arguments,
    each,
    gather,
    is_array,
    on_host,
    same,
    torchrec_tensors,
)
from cedar.core.printable import one_line


@dataclass(frozen=True, eq=False)
class InverseKeyedJaggedTensor(Container):
    """A group of features: row i of key k is ``values[k][offsets[k][u] : offsets[k][u + 1]]``, u = inverse_lookup[i].

    Two rows are equal if the lists of all keys and their weights are equal; floats are compared by their bits. Every
    unique row occurs, and unique rows are in the order of first occurrence. The inverse therefore ascends if equal rows
    are neighbors. A row may be an empty list, but not null.

    Args:
        keys: the features of the group.
        values: by key, or in the order of ``keys``: the ``values`` of a ``JaggedTensor`` of the unique rows.
        offsets: by key or in that order, the ``offsets`` of these tensors: int64[unique rows + 1].
        inverse_lookup: int32 or int64 [rows]: the unique row of each row.
        weights: for some keys, by name: one weight per value.

    Raises:
        PipelineError: the parts do not fit together.

    Examples:
        >>> import cedar, numpy as np
        >>> a = cedar.JaggedTensor(np.array([1, 2, 1, 2, 3]), np.array([0, 2, 4, 5]))
        >>> b = cedar.JaggedTensor(np.array([9, 9, 9]), np.array([0, 1, 2, 3]))
        >>> group = cedar.InverseKeyedJaggedTensor.from_jagged({"a": a, "b": b})
        >>> group["a"].to_list(), group["b"].to_list(), group.inverse_lookup.tolist()
        ([[1, 2], [3]], [[9], [9]], [0, 0, 1])
        >>> group.expand()["a"].to_list()
        [[1, 2], [1, 2], [3]]
    """

    fixed: ClassVar[str] = "keys"
    keys: tuple[str, ...]
    values: Mapping[str, Any]
    offsets: Mapping[str, Any]
    inverse_lookup: Any
    weights: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        keys = tuple(self.keys)
        object.__setattr__(self, "keys", keys)
        if not keys or len(set(keys)) < len(keys):
            raise _error(f"the keys are {', '.join(map(repr, keys)) or 'none'}", "name each feature once")
        for part in ("values", "offsets"):
            object.__setattr__(self, part, _dict_by_key(getattr(self, part), keys, part))
        object.__setattr__(self, "weights", dict(self.weights or {}))
        _check(self)

    @classmethod
    def from_jagged(
        cls, features: Mapping[str, JaggedTensor], weights: Mapping[str, Any] | None = None
    ) -> InverseKeyedJaggedTensor:
        """Build the group of some features and find their equal rows.

        Args:
            features: the features by key, all with the same number of rows.
            weights: for some of these keys, one weight per value.

        Raises:
            PipelineError: there are no features, or their numbers of rows differ.
        """
        if not features or len({len(feature) for feature in features.values()}) > 1:
            sizes = ", ".join(f"{key}: {len(feature)}" for key, feature in features.items())
            raise _error(f"from_jagged of features of ({sizes}) rows", "give features of equal numbers of rows")
        given = dict(weights or {})
        if set(given) - set(features):
            raise _error(
                f"weights for {sorted(set(given) - set(features))}, which are not keys", "give weights for keys only"
            )
        weighed = [JaggedTensor(given[key], features[key].offsets) for key in given]
        inverse, first = distinct([feature.to_arrow() for feature in [*features.values(), *weighed]])
        values, offsets = ({key: getattr(f, part) for key, f in features.items()} for part in ("values", "offsets"))
        like = next(iter(offsets.values()))
        every = cls(tuple(features), values, offsets, _like(np.arange(len(inverse)), like), given)
        return every._of_unique(_like(first, like), _like(inverse, like))

    # ---- contents ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.inverse_lookup.shape[0])

    @property
    def unique(self) -> int:
        """The number of unique rows."""
        return int(self.offsets[self.keys[0]].shape[0]) - 1

    @property
    def factor(self) -> float:
        """Rows per unique row; 1.0 if there are no rows."""
        return len(self) / self.unique if self.unique else 1.0

    def __getitem__(self, rows: Any) -> Any:
        """Return the unique rows of a key (a JaggedTensor), or the rows of a slice (a group of the rows it uses).

        Raises:
            KeyError: there is no key of that name.
        """
        if isinstance(rows, slice):
            return self.take(np.arange(len(self))[rows])
        return JaggedTensor(self.values[rows], self.offsets[rows])

    def take(self, rows: Any) -> InverseKeyedJaggedTensor:
        """Return the rows at ``rows`` (integers), in that order, as a group."""
        index = _like(np.asarray(rows, dtype=np.int64), self.inverse_lookup)
        inverse, used = renumber(on_host(self.inverse_lookup[index]).astype(np.int32))
        return self._of_unique(_like(used.astype(np.int64), self.inverse_lookup), _like(inverse, self.inverse_lookup))

    def _of_unique(self, rows: Any, inverse: Any) -> InverseKeyedJaggedTensor:
        """Return the group of the unique rows at ``rows``, with another inverse."""
        picked = {key: gather(self.values[key], self.offsets[key], rows) for key in self.keys}
        return InverseKeyedJaggedTensor(
            self.keys,
            {key: values for key, (values, _) in picked.items()},
            {key: offsets for key, (_, offsets) in picked.items()},
            inverse,
            {key: gather(weights, self.offsets[key], rows)[0] for key, weights in (self.weights or {}).items()},
        )

    def expand(self) -> dict[str, JaggedTensor]:
        """Return every row of each key: a plain JaggedTensor by key."""
        inverse = self.inverse_lookup
        index = inverse if isinstance(inverse, np.ndarray) else inverse.long()  # all versions of torch accept int64
        return {key: JaggedTensor(*gather(self.values[key], self.offsets[key], index)) for key in self.keys}

    def weighted(self, pairs: Mapping[str, str]) -> InverseKeyedJaggedTensor:
        """Use keys as weights of others: ``weighted({"ids": "scores"})`` removes ``scores`` and uses it as weights.

        Raises:
            PipelineError: a key does not exist, or its lists differ in length.
        """
        for key, weight in pairs.items():
            if key not in self.keys or weight not in self.keys:
                raise _error(f"weighted({{{key!r}: {weight!r}}})", f"the keys are {', '.join(self.keys)}")
            if not same(self.offsets[key], self.offsets[weight]):
                raise _error(
                    f"{weight!r} weighs {key!r}, but their lists differ in length", "give one weight per value"
                )
        keys = tuple(key for key in self.keys if key not in pairs.values())
        weights = {**(self.weights or {}), **{key: self.values[weight] for key, weight in pairs.items()}}
        values, offsets = ({key: part[key] for key in keys} for part in (self.values, self.offsets))
        return InverseKeyedJaggedTensor(keys, values, offsets, self.inverse_lookup, weights)

    def __eq__(self, other: object) -> bool:
        """Return True for the same keys, rows and dtypes, stored in the same way (NaN equals NaN)."""
        if not isinstance(other, InverseKeyedJaggedTensor):
            return NotImplemented
        return self.keys == other.keys and all(
            same(mine, theirs)
            for mine, theirs in (
                (self.values, other.values), (self.offsets, other.offsets), (self.weights, other.weights),
                (self.inverse_lookup, other.inverse_lookup),
            )
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        keys = one_line(", ".join(self.keys))
        return f"InverseKeyedJaggedTensor({keys}; rows={len(self)}, unique={self.unique})"

    # ---- conversion --------------------------------------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> InverseKeyedJaggedTensor:
        """Apply ``torch.Tensor.to`` to all parts; a dtype only changes values and weights."""
        place = device_arguments(self.inverse_lookup, args, kwargs)
        return InverseKeyedJaggedTensor(
            self.keys,
            each(self.values, lambda values: values.to(*args, **kwargs)),
            each(self.offsets, lambda offsets: offsets.to(**place)),
            self.inverse_lookup.to(**place),
            each(self.weights, lambda weights: weights.to(*args, **kwargs)),
        )

    def pin_memory(self) -> InverseKeyedJaggedTensor:
        """Copy to page-locked memory, from which copies to a device run in the background."""
        return each(self, lambda tensor: tensor.pin_memory())  # type: ignore[no-any-return]

    def to_torch(self) -> InverseKeyedJaggedTensor:
        """Convert arrays to tensors, which share their memory if it is writable."""
        from cedar.core.convert import to_torch

        return cast(
            "InverseKeyedJaggedTensor",
            each(self, lambda values: to_torch(values, "values") if isinstance(values, np.ndarray) else values),
        )

    def to_torchrec(self) -> Any:
        """Convert to a ``torchrec.KeyedJaggedTensor`` of variable batch size: one stride and one inverse per key.

        Raises:
            CedarError: torchrec cannot be imported.
            PipelineError: the keys have different dtypes, or only some have weights.
        """
        import torch

        theirs = torchrec_tensors()
        tensors = self.to_torch()
        for kind, parts in (("values", tensors.values), ("weights", tensors.weights or {})):
            if len({getattr(part, "dtype", None) for part in parts.values()}) > 1 or len(parts) not in (
                0,
                len(self.keys),
            ):
                raise _error(f"to_torchrec: {kind} differ in dtype, or some keys have none", "give groups of one dtype")
        inverse = tensors.inverse_lookup.to(torch.int64)
        return theirs.KeyedJaggedTensor(
            keys=list(self.keys),
            values=torch.cat([tensors.values[key] for key in self.keys]),
            weights=torch.cat([tensors.weights[key] for key in self.keys]) if tensors.weights else None,
            lengths=torch.cat([tensors.offsets[key].diff() for key in self.keys]),
            stride_per_key_per_rank=[[self.unique] for _ in self.keys],
            inverse_indices=(list(self.keys), inverse.expand(len(self.keys), -1)),
        )


def _dict_by_key(parts: Any, keys: tuple[str, ...], label: str) -> dict[str, Any]:
    if isinstance(parts, Mapping):
        if set(parts) != set(keys):
            raise _error(f"{label} of {', '.join(map(repr, parts))}, keys {', '.join(map(repr, keys))}", "one per key")
        return {key: parts[key] for key in keys}
    if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) != len(keys):
        raise _error(f"{label} are not one per key", "give a dict by key, or a list in the order of the keys")
    return dict(zip(keys, parts, strict=True))


def _check(group: InverseKeyedJaggedTensor) -> None:
    inverse = group.inverse_lookup
    unique = {key: len(JaggedTensor(group.values[key], group.offsets[key])) for key in group.keys}
    if len(set(unique.values())) > 1:
        raise _error(
            f"the keys have {unique} unique rows", "use the same number of unique rows for all keys of a group"
        )
    if not is_array(inverse) or inverse.ndim != 1:
        raise _error("inverse_lookup is not an array of one dimension", "give one unique row per row")
    if set(group.weights or {}) - set(group.keys):
        raise _error("there are weights for a name that is not a key", "give weights for keys only")
    for key, weights in (group.weights or {}).items():
        if is_array(group.values[key]) and len(weights) != len(group.values[key]):
            raise _error(f"{len(weights)} weights for {len(group.values[key])} values of {key!r}", "one for each value")
    on_host = isinstance(inverse, np.ndarray) or inverse.device.type == "cpu"
    if on_host and len(inverse) and not 0 <= int(inverse.min()) <= int(inverse.max()) < group.unique:
        raise _error(
            f"inverse_lookup ranges from {int(inverse.min())} to {int(inverse.max())}, with {group.unique} unique rows",
            "number the unique rows from 0",
        )


def _error(problem: str, fix: str) -> PipelineError:
    return PipelineError(f"InverseKeyedJaggedTensor: {problem}", fix=fix)


def _like(numbers: Any, like: Any) -> Any:
    """Convert ``numbers`` to the framework and device of ``like``."""
    if isinstance(like, np.ndarray):
        return numbers
    import torch

    return torch.from_numpy(np.array(numbers)).to(like.device)
