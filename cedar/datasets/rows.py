"""Convert Python rows to columns; columns and types are inferred from the first 64 rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cedar.core.columns import Column, ColumnType
from cedar.core.dtypes import infer_type, type_from_dtype
from cedar.core.errors import PipelineError, RowError, RowRef
from cedar.core.values import ValueMismatch, build_column

SAMPLE = 64  # rows used to infer types
Form = Literal["dict", "tuple", "item"]


@dataclass(frozen=True)
class RowTypes:
    """The column types, and the form of rows: dict, tuple (columns "0", "1", ...) or single value (column "item")."""

    form: Form
    kinds: dict[str, ColumnType]


@dataclass(frozen=True)
class Origin:
    """The origin of rows, for error messages: the source's name, the file index, and what a row is called."""

    url: str
    file: int = 0
    unit: str = "item"

    def error(self, problem: str, row: int, fix: str | None = None) -> RowError:
        return RowError(problem, row=RowRef(0, self.file, row, url=self.url, unit=self.unit), fix=fix)


def copied_if_dict(item: Any) -> Any:
    """Copy a dict row, since the user's code may reuse the dict for the next row."""
    return item.copy() if type(item) is dict else item


def form_of(item: Any) -> Form:
    """Return how to convert an item to columns: as a dict, a tuple or a single value."""
    if type(item) is dict:
        return "dict"
    if isinstance(item, Mapping) or hasattr(item, "_asdict"):
        return "dict"
    return "tuple" if isinstance(item, tuple) else "item"


def names_of(item: Any) -> list[str]:
    """Return the column names of a single item."""
    names = list(as_row(item))
    odd = next((n for n in names if not isinstance(n, str)), None)
    if odd is not None:
        raise PipelineError(f"column names must be strings, not {odd!r} ({type(odd).__name__})")
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise PipelineError(f"a column name is not UTF-8: {error}", fix="rename the key") from error
    return names


def as_row(item: Any) -> Mapping[Any, Any]:
    """Return an item as a mapping of column names to values."""
    if type(item) is dict:
        return item
    form = form_of(item)
    if form == "dict":
        mapping: Mapping[Any, Any] = item if isinstance(item, Mapping) else item._asdict()
        return mapping
    return {str(i): v for i, v in enumerate(item)} if form == "tuple" else {"item": item}


def fix_types(
    items: Sequence[Any], origin: Origin, first: int = 0, dtypes: Mapping[str, Any] | None = None
) -> RowTypes:
    """Infer columns and types from up to 64 ``items``; ``first`` is the row index of the first one, for errors.

    Raises:
        RowError: values of one column do not have a common type.
        PipelineError: a name is not a string, or ``dtypes`` names a column that does not exist.
    """
    form = form_of(items[0]) if items else "dict"
    rows = [as_row(_same_form(item, form, origin, first + i)) for i, item in enumerate(items)]
    names = dict.fromkeys(name for item in items for name in names_of(item))
    kinds = {}
    for name in names:
        try:
            declared = None if dtypes is None else dtypes.get(name)
            kinds[name] = infer_type([r.get(name) for r in rows]) if declared is None else type_from_dtype(declared)
        except ValueMismatch as misfit:
            # A tensor's dtype may not exist in NumPy.
            fix = _FIX_TENSORS if type(misfit.__cause__) in (TypeError, RuntimeError) else _FIX
            if form == "item" and isinstance(items[misfit.index], list):
                fix = _FIX_LISTS
            raise origin.error(f"column {name!r}: {misfit.message}", first + misfit.index, fix) from misfit
    for name, declared in (dtypes or {}).items():
        kinds.setdefault(name, type_from_dtype(declared))
    return RowTypes(form, kinds)


_FIX_TENSORS = "give tensors of a dtype that NumPy has, for example .float() of bfloat16"
_FIX_LISTS = 'a list is one value: return a tuple or a dict, or give from_items(dataset, names=("x", "y"))'
_FIX = "use one type for all values of the column, or set it: dtypes={...}, or schema() of your own source"


def _same_form(item: Any, form: Form, origin: Origin, row: int) -> Any:
    if form_of(item) != form:
        wanted = {"dict": "a dict", "tuple": "a tuple", "item": "a single value"}[form]
        raise origin.error(f"{wanted} is expected, like the first item, not {type(item).__name__}", row)
    return item


def _tensors_as_arrays(values: list[Any]) -> list[Any]:
    """Convert tensors of equal shape and dtype to arrays or NumPy scalars with one copy; return others unchanged."""
    kind = type(values[0]) if values else None
    if kind is None or kind.__module__ != "torch" or kind.__name__ != "Tensor" or set(map(type, values)) != {kind}:
        return values
    first = values[0]
    alike = all(v.shape == first.shape and v.dtype == first.dtype and v.device.type == "cpu" for v in values)
    if not alike or first.layout is not (torch := sys.modules["torch"]).strided or first.is_quantized:
        return values
    try:
        return list(torch.stack(values).detach().numpy())
    except (RuntimeError, TypeError):  # bfloat16 and other dtypes do not exist in NumPy
        return values


def build_rows(items: Sequence[Any], types: RowTypes, origin: Origin, first: int) -> dict[str, Column]:
    """Convert ``items`` to columns of the given types; a missing key becomes null.

    Raises:
        RowError: a value does not match its type, or an item has a key that ``types`` lacks; the error names the row.
    """
    rows: Sequence[Mapping[Any, Any]] = items
    if types.form != "dict" or set(map(type, items)) != {dict}:
        rows = [as_row(_same_form(item, types.form, origin, first + i)) for i, item in enumerate(items)]
    known = types.kinds.keys()
    if not known >= set().union(*rows):
        i, row = next((i, row) for i, row in enumerate(rows) if not row.keys() <= known)
        extra = next(name for name in row if name not in known)
        raise origin.error(
            f"unexpected column {extra!r}: the first {SAMPLE} rows have {list(known)}",
            first + i,
            "include it in the first row too (None is enough), or set its type with dtypes={...}",
        )
    columns = {}
    for name, kind in types.kinds.items():
        try:
            columns[name] = build_column(_tensors_as_arrays([row.get(name) for row in rows]), kind)
        except ValueMismatch as misfit:
            raise origin.error(f"column {name!r}: {misfit.message}", first + misfit.index, _FIX) from misfit
    return columns
