"""drop and rename: remove and rename columns without copying data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cedar.core.errors import PipelineError, user_site
from cedar.operators.base import Bound, Effects, Kernel, Mergeable, RowOperator, Schema
from cedar.operators.expression_kernel import ColumnsKernel
from cedar.operators.expression_steps import DropColumns, RenameColumns, output_types
from cedar.operators.failures import ErrorContext


class ColumnEdit(ABC):
    """An operator that only drops or renames columns; what it drops or renames does not count as read."""

    @property
    def renames(self) -> Mapping[str, str]:
        """A mapping from old to new column names."""
        return {}

    @abstractmethod
    def fitted(self, columns: Container[str]) -> Self | None:
        """Return the operator adapted to an input with only these columns; None if the operator becomes unnecessary."""


@dataclass(frozen=True)
class Drop(RowOperator, ColumnEdit, Mergeable):
    """Removes columns.

    Raises:
        PipelineError: a name is not a string.

    Examples:
        >>> from cedar.operators.columns_ops import Drop
        >>> Drop(("raw", "tmp")).label()
        'drop(raw, tmp)'
    """

    names: tuple[str, ...]
    name: ClassVar[str] = "drop"

    def __post_init__(self) -> None:
        for name in self.names:
            if not isinstance(name, str):
                raise PipelineError(
                    f"drop: {name!r} is not a column name", site=user_site(), fix="give column names as strings"
                )

    def label(self) -> str:
        return f"drop({', '.join(self.names)})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(self.names))

    may_fail = False
    group_use = "kept"

    def fitted(self, columns: Container[str]) -> Drop | None:
        names = tuple(name for name in self.names if name in columns)
        return None if not names else self if names == self.names else Drop(names)

    def schema(self, *inputs: Schema) -> Schema:
        step = DropColumns(self.names, ErrorContext(0, self.label()))
        return None if inputs[0] is None else output_types((step,), inputs[0])

    def bind(self, bound: Bound) -> Kernel:
        return ColumnsKernel((DropColumns(self.names, ErrorContext.at(bound)),))


@dataclass(frozen=True)
class Rename(RowOperator, ColumnEdit, Mergeable):
    """Renames columns by (old, new) pairs. Pairs apply simultaneously, so that two names can be swapped.

    Raises:
        PipelineError: a name is not a string, or two columns get the same name.

    Examples:
        >>> from cedar.operators.columns_ops import rename
        >>> rename({"y": "label"}).label()
        'rename(y -> label)'
    """

    pairs: tuple[tuple[str, str], ...]
    name: ClassVar[str] = "rename"

    def __post_init__(self) -> None:
        for pair in self.pairs:
            for name in pair:
                if not isinstance(name, str):
                    raise PipelineError(
                        f"rename: {name!r} is not a column name", site=user_site(), fix="give {'old': 'new'}"
                    )
        news = [new for _, new in self.pairs]
        for new in news:
            if news.count(new) > 1:
                raise PipelineError(f"rename: two columns would be called {new!r}", site=user_site())

    def label(self) -> str:
        return f"rename({', '.join(f'{old} -> {new}' for old, new in self.pairs)})"

    def effects(self) -> Effects:
        olds = frozenset(old for old, _ in self.pairs)
        return Effects(olds, olds | {new for _, new in self.pairs})

    may_fail = False
    group_use = "kept"

    @property
    def renames(self) -> Mapping[str, str]:
        return dict(self.pairs)

    def fitted(self, columns: Container[str]) -> Rename | None:
        pairs = tuple(pair for pair in self.pairs if pair[0] in columns)
        return None if not pairs else self if pairs == self.pairs else Rename(pairs)

    def schema(self, *inputs: Schema) -> Schema:
        step = RenameColumns(self.pairs, ErrorContext(0, self.label()))
        return None if inputs[0] is None else output_types((step,), inputs[0])

    def bind(self, bound: Bound) -> Kernel:
        return ColumnsKernel((RenameColumns(self.pairs, ErrorContext.at(bound)),))


def rename(mapping: Any) -> Rename:
    """Return the operator for a dict that maps old names to new names."""
    if not isinstance(mapping, Mapping):
        raise PipelineError(
            f"rename: {mapping!r:.60} is not a dict of old to new names", site=user_site(), fix="give {'old': 'new'}"
        )
    return Rename(tuple(mapping.items()))
