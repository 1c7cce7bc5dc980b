"""Every kind of node of the table, on every type: is it row-wise where it says so, and does it fail where it does not?

What users' blocks meet is tried, through the kernel: a row alone, two, many, in another order, in a slice, next to
nulls and next to none, and in a process that has met other categories before.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as pt
import pytest

from cedar.core.boundary import as_column
from cedar.core.errors import PipelineError
from cedar.operators.elementwise import check_elementwise, judge
from cedar.operators.expression_kernel import ResultTypeError, run
from cedar.operators.expression_kinds import INSIDE, KINDS, Kind, groups_of
from cedar.operators.expression_nodes import tree
from cedar.operators.expression_steps import AddColumns, compile_steps
from tests.how_much import LONG
from tests.operators.column_values import columns
from tests.operators.toy_expressions import BLAME
from tests.toy_blocks import block

ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
COLUMNS = columns()
NAMES: dict[str, Any] = {"pl": pl, "e": pl.element(), **{name: pl.col(name) for name in "xyisb"}}


def written(form: str) -> pl.Expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what polars will lose is still in the table
        return eval(form, NAMES)  # type: ignore[no-any-return]


def forms() -> Iterator[tuple[Kind | None, str]]:
    for kind in KINDS:
        for form in kind.forms:
            yield kind, form
    for some in INSIDE.values():
        for form in some.split(" ; "):
            yield None, f"x.list.eval({form.replace('e.', 'pl.element().').replace('e -', 'pl.element() -')})"


FORMS = list(forms())


def table(x: pl.Series) -> pl.DataFrame:
    """A column with nulls in it, and operands next to it."""
    null = pl.Series("x", [None], dtype=x.dtype)
    x = pl.concat([x[:1], null, x[1:], null])
    n = len(x)
    return pl.DataFrame(
        {
            "x": x,
            "y": x[[(j * 5 + 2) % n for j in range(n)]],
            "i": pl.Series([(0, 1, 2, -1, 0, 3)[j % 6] for j in range(n)], dtype=pl.Int64),
            "s": pl.Series([("a", "", "1", "(", None, "b")[j % 6] for j in range(n)], dtype=pl.String),
            "b": pl.Series([(True, False, None, True)[j % 4] for j in range(n)], dtype=pl.Boolean),
        }
    )


def whole_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with integers for days and times, which Python cannot hold all of."""
    if pt.is_date32(kind) or pt.is_time32(kind):
        return pa.int32()
    if pt.is_temporal(kind):
        return pa.int64()
    if pt.is_large_list(kind):
        return pa.large_list(whole_numbers(kind.value_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(whole_numbers(kind.value_type), kind.list_size)
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, whole_numbers(f.type)) for f in kind])
    return kind


def texts(column: Any) -> list[str]:
    """A text for each value, which differs where bits do: -0.0 is not 0.0."""
    return [repr(value) for value in column.cast(whole_numbers(column.type)).to_pylist()]


class Judged:
    """An expression on one column, as blocks run it."""

    def __init__(self, form: str, x: pl.Series) -> None:
        self.frame = table(x)
        self.expr = written(form)
        self.categorical = "categorical" in groups_of(x.dtype)
        types = pl.LazyFrame(schema=self.frame.schema)
        types.select(self.expr).collect_schema()
        self.judgment = judge(self.expr, types)

    def values(self, rows: list[int] | slice) -> list[str]:
        """Of some rows, in their own block; a slice shares the memory of the others.

        Categories do not enter blocks: texts do, and become categories by a cast.
        """
        frame = self.frame[rows]
        if self.categorical:
            return texts(self._in_polars(frame))
        given = block(**{c.name: as_column(c.to_arrow(compat_level=pl.CompatLevel.oldest())) for c in frame})
        if not hasattr(self, "program"):
            self.program = compile_steps((AddColumns((("r", self.expr),), BLAME),), tuple(given.types.items()))
        return texts(run(self.program, given).columns["r"])

    def _in_polars(self, frame: pl.DataFrame) -> Any:
        doubled = pl.concat([frame, frame]) if frame.height == 1 else frame
        doubled = pl.DataFrame([pl.Series(c.name, c.to_arrow(), dtype=c.dtype) for c in doubled])
        done = doubled.lazy().select(r=self.expr).collect(engine="in-memory")["r"]
        found = as_column(done.to_arrow(compat_level=pl.CompatLevel.oldest()))
        return found[:1] if frame.height == 1 and len(found) == 2 else found

    def alone(self) -> tuple[list[str | None], list[str]]:
        """What each row gives in its own block, None if it fails, and the errors."""
        found: list[str | None] = []
        errors = []
        for row in range(self.frame.height):
            try:
                found += self.values([row])
            except ERRORS as error:
                found.append(None)
                errors.append(str(error).partition("\n")[0])
        return found, errors


def fits(form: str, name: str) -> bool:
    """Whether polars takes the types, and we do."""
    try:
        return Judged(form, COLUMNS[name]).judgment.refused is None
    except ERRORS:
        return False


def judged(form: str, name: str) -> Judged | None:
    """None if polars refuses the types, or we do."""
    try:
        made = Judged(form, COLUMNS[name])
        if made.judgment.refused is None:
            made.values([])
    except (*ERRORS, PipelineError, ResultTypeError):
        return None
    return made if made.judgment.refused is None else None


def faults(form: str, name: str) -> list[str]:
    """What is wrong with what the table says of a form on a column."""
    case = judged(form, name)
    if case is None:
        return []
    what = f"{form} on {name}"
    try:
        alone, errors = case.alone()
    except (PipelineError, ResultTypeError):
        return []  # refused by name
    except pa.ArrowException as error:
        return [f"{what} gives what Arrow cannot read: {error}"]
    if errors and not case.judgment.may_fail:
        return [f"{what} may fail: {errors[0]}"]
    good = [row for row, value in enumerate(alone) if value is not None]
    nulls = case.frame["x"].is_null().to_list()
    found = []
    blocks: list[list[int] | slice] = [
        good, good[::-1], good * 2, good[:2], [r for r in good if not nulls[r]], [r for r in good if nulls[r]],
    ]  # fmt: skip
    if not errors:
        blocks += [slice(1, 3), slice(2, None), slice(1, 2)]
    for rows in blocks:
        here = list(range(*rows.indices(len(alone)))) if isinstance(rows, slice) else rows
        try:
            together = case.values(rows)
        except (*ERRORS, PipelineError, ResultTypeError) as error:
            found.append(f"{what}, rows {here}: fails together only: {str(error)[:80]}")
            continue
        if together != [alone[row] for row in here]:
            found.append(f"{what}, rows {here}: {together} is not {[alone[row] for row in here]}")
    for row in (row for row, value in enumerate(alone) if value is None):
        try:
            case.values([row, *good[:2]])
        except ERRORS:
            continue
        found.append(f"{what}, row {row}: fails alone only")
    return found[:1]


def taken(turn: int) -> Iterator[str]:
    """The columns that a form is tried on: all that it fits in the long run, else two, by turns."""
    names = list(COLUMNS)
    start = 7 * turn % len(names)
    fitting = (name for name in names[start:] + names[:start] if fits(FORMS[turn][1], name))
    return fitting if LONG else islice(fitting, 2)


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(8))
def test_values_depend_on_their_row_alone(part: int) -> None:
    found = []
    for turn, (_, form) in enumerate(FORMS):
        if turn % 8 == part:
            for name in taken(turn):
                found += faults(form, name)
    assert not found, "\n".join(found)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [k for k in KINDS if k.never], ids=lambda kind: kind.node)
def test_no_row_makes_fail_what_never_fails(kind: Kind) -> None:
    """All pairs of types of operands: polars converts one to the other."""
    names = [name for name, x in COLUMNS.items() if groups_of(x.dtype) <= kind.never]
    for number, name in enumerate(names):
        others = names if LONG else names[number % 3 :: 3]
        for other in others if "y" in kind.written else [name]:
            x, y = COLUMNS[name], COLUMNS[other].rename("y")
            pairs = x.to_frame().join(y.to_frame(), how="cross")
            pairs = pairs.with_columns(i=pl.lit(2), s=pl.lit("a"), b=pl.lit(True))
            for form in kind.forms:
                expr = written(form)
                try:
                    pairs.lazy().select(expr).collect_schema()
                    pairs[:0].lazy().select(expr).collect(engine="in-memory")
                except ERRORS:
                    continue
                if not judge(expr, pl.LazyFrame(schema=pairs.schema)).may_fail:
                    pairs.lazy().select(expr).collect(engine="in-memory")


@pytest.mark.heavy
def test_the_table_is_whole() -> None:
    nodes = [kind.node for kind in KINDS]
    assert len(set(nodes)) == len(nodes)
    for kind, form in FORMS:
        assert check_elementwise(written(form)) is None, form
        if kind is not None:
            part = kind.node.rpartition(".")[2]
            assert part in str(tree(written(form))), f"{form} has no {kind.node}"
            assert kind.never <= kind.on
        assert any(fits(form, name) for name in COLUMNS), f"{form} is tried on nothing"


def test_the_table_in_the_documents_is_current() -> None:
    docs = Path(__file__).parents[2] / "docs"
    table = runpy.run_path(str(docs / "site" / "row_wise.py"))["markdown"]()
    assert table in (docs / "row_wise.md").read_text(), "make it with: python docs/site/row_wise.py"


WORKER = """
import json, sys
import polars as pl
pl.Series(json.loads(sys.argv[1])).cast(pl.Categorical)  # categories are numbered in this order
from tests.operators import test_expression_kinds as t
found = {}
for turn, (_, form) in enumerate(t.FORMS):
    for name in ("categorical", "list categorical", "string"):
        case = t.judged(form, name) if name != "string" or "cast" in form or "hash" in form else None
        if case is not None:
            try:
                found[f"{form} on {name}"] = case.alone()[0]
            except (t.PipelineError, t.ResultTypeError):
                pass
print(json.dumps(found))
"""


@pytest.mark.heavy
def test_two_processes_give_the_same() -> None:
    first, second = (
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, order], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for order in ("[]", '["c", "zz", "a", "b", "2020-01-01"]')
    )
    found = [json.loads(process.communicate(timeout=120)[0]) for process in (first, second)]
    assert found[0]
    assert found[0] == found[1]
