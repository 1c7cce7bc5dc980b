"""Every precondition of a step has a graph that it refuses, and there is none that no graph tests."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pytest

import cedar
from cedar import Skip, col
from cedar.datasets.base import BaseSource, Read, Selects, Split
from cedar.operators import image, recsys
from cedar.operators.base import RowOperator
from cedar.operators.expressions import FilterExpression, select
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.steps import (
    Cache,
    Cross,
    DropResults,
    Group,
    Keep,
    Loosen,
    Place,
    PushColumns,
    PushFilter,
    Reorder,
    Replace,
    Share,
    Step,
    order,
    pushdown,
    single,
)  # fmt: skip
from cedar.plan.steps.step import facts_of


def f(x: Any) -> Any:
    return x


def g(x: Any) -> Any:
    return x


def drawn(x: Any, rng: Any) -> Any:
    return x


def table(*names: str) -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({name: pa.array(range(6), pa.int64()) for name in names or "abc"}))


def items() -> cedar.Pipeline:
    return cedar.from_items([{"a": 1, "b": 2}])


def structs() -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"s": [{"x": 1, "y": 2}], "b": [1]}))


def streaming() -> cedar.Pipeline:
    return cedar.from_iterable(lambda: iter([{"a": 1, "b": 2}]), dtypes={"a": int, "b": int})


def anything(row: Any) -> Any:
    return row


@dataclass(frozen=True, eq=False)
class Stub(BaseSource):
    """A source that can leave columns out, but no fields."""

    selects: ClassVar[Selects] = "columns"

    def splits(self) -> list[Split]:
        return [Split(rows=1)]

    def read(self, split: Split) -> Iterator[Any]:
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        return {"s": pa.struct([("x", pa.int64()), ("y", pa.int64())]), "b": pa.int64()}

    def select(self, columns: Any) -> Any:
        return self


class Failing(Stub):
    """Its rows may fail."""

    reports_bad_rows = True


class Whole(Stub):
    """A source that reads all of its columns."""

    selects: ClassVar[Selects] = ""


def reads(source: Any) -> cedar.Pipeline:
    return cedar.Pipeline(Node(Read(source)))


def replaced(node: Node) -> Node:
    """A graph in which an operator was put in place of the last one."""
    return Node(table().map(g, "a").node.operator, node.inputs, node.site, node)


def images() -> cedar.Pipeline:
    return cedar.from_items([{"b": b"x"}]).map(image.decode(), "b", into="i")


SKIPPED = {"skips": lambda node: True}
B = col("b") > 1
UP, DOWN = Cross("up"), Cross("down")
shared = table().map(f, "a")
ids = cedar.from_items([{"l": [1, 2], "m": [1]}])

# The pipeline, where in its graph (up from the end; 0 is the end), the step, why it is refused, and what facts say.
REFUSED: list[tuple[cedar.Pipeline, int, Step, str, dict[str, Any]]] = [
    # ---- the order of row operators
    (table(), 0, Reorder((1, 0)), "no such run", {}),
    (table().map(f, "a").map(f, "b"), 0, Reorder((1, 1)), "no such run", {}),
    (table().map(f, "a").map(f, "b"), 0, Reorder((0, 1)), "already in this order", {}),
    (cedar.concat(shared.map(f, "b"), shared), 1, Reorder((1, 0)), "others draw from map(f)", {}),
    (table().shuffle().map(f, "b"), 0, Reorder((1, 0)), "works across rows", {}),
    (table().map_batches(lambda b: b, "a", size=2).map(f, "b"), 0, Reorder((1, 0)), "works across rows", {}),
    (table().cache().map(f, "b"), 0, Reorder((1, 0)), "would keep other columns", {}),
    (table().map(anything).map(f, "b"), 0, Reorder((1, 0)), "may write any column", {}),
    (table().filter(lambda row: True).map(f, "b"), 0, Reorder((1, 0)), "may read any column", {}),
    (ids.dedup([["l"]]).map(recsys.FirstX(1), "l"), 0, Reorder((1, 0)), "runs once for equal rows", {}),
    (table().map(f, "a").filter(col("a") > 1), 0, Reorder((1, 0)), "writes 'a', which", {}),
    (table().map(f, "a", into="c").map(f, "b", into="c"), 0, Reorder((1, 0)), "writes, too", {}),
    (table().map(f, "a").map(g, "a"), 0, Reorder((1, 0)), "and do not say how", {}),
    (images().map(image.resize(5), "i").map(image.resize(4), "i"), 0, Reorder((1, 0)), "do not commute", {}),
    (table().select("a").with_columns(b=1), 0, Reorder((1, 0)), "drops what", {}),
    (table().filter(col("c") > 1).select("a"), 0, Reorder((1, 0)), "drops 'c', which", {}),
    (table().map(anything).map(f, "a", into="x").map(f, "b", into="y"), 0, Reorder((0, 2, 1)),
     "their order would change", {}),
    (table().flat_map(lambda a: [a], "a", into="x").flat_map(lambda b: [b], "b", into="y"), 0, Reorder((1, 0)),
     "both make rows", {}),
    (table().map(drawn, "a", random=True).flat_map(lambda b: [b], "b", into="y"), 0, Reorder((1, 0)),
     "draws by row key", {}),
    (table().map(f, "a").map(f, "b"), 0, Reorder((1, 0)), "may both skip rows", SKIPPED),
    (table().map(f, "a", on_error=Skip()).filter(B), 0, Reorder((1, 0)), "that filter", {"own": True}),
    (table().batch(2).map(f, "a", on_error=Skip()).map(f, "b"), 0, Reorder((1, 0)), "out of the batch", {"own": True}),
    # ---- through stream operators
    (table().map(f, "a").filter(B), 0, DOWN, "input is not a stream operator", {}),
    (table().take(3).filter(B), 0, DOWN, "take(3)", {}),
    (cedar.concat((one := table().shuffle()).filter(B), one), 1, DOWN, "others draw from shuffle", {}),
    (table().shuffle().filter(B), 0, DOWN, "it may skip rows", SKIPPED),
    (table().take(3).shuffle().filter(B), 0, DOWN, "takes its windows from the rows of take(3)", {}),
    (table().map_batches(lambda b: b, "a", size=2).shuffle().filter(B), 0, DOWN, "windows from the rows of map_b", {}),
    (cedar.concat(streaming(), streaming()).filter(B), 0, DOWN, "read from their beginning", {"streams": True}),
    (table().shuffle().filter(B).shuffle(), 1, DOWN, "takes its windows from the rows of shuffle", {}),
    (table().shuffle().flat_map(lambda a: [a], "a", into="x"), 0, DOWN, "a row for each row of one input", {}),
    (cedar.concat(table(), table()).map(f, "a"), 0, DOWN, "a row for each row of one input", {}),
    (table().batch(2).map(f, "a"), 0, DOWN, "does more than reorder rows", {}),
    (table().skip(1).map(f, "a"), 0, DOWN, "does more than reorder rows", {}),
    (table().shuffle(by="a").map(f, "a"), 0, DOWN, "groups rows by what it may write", {}),
    (table().shuffle().map(f, "a"), 0, DOWN, "it may skip rows", SKIPPED),
    (cedar.concat((two := table().shuffle()).map(f, "a"), two), 1, DOWN, "others draw from shuffle", {}),
    (table().shuffle(), 0, UP, "no such run", {}),
    (table().map(f, "a").shuffle(), 0, Cross("up", 0), "no such run", {}),
    (cedar.concat(shared.shuffle(), shared), 1, UP, "others draw from map(f)", {}),
    (table().filter(B).shuffle(), 0, UP, "does not give a row for each row", {}),
    (table().map(f, "a").skip(1), 0, UP, "does more than reorder rows", {}),
    (table().map(f, "a").shuffle(by="a"), 0, UP, "groups rows by what it may write", {}),
    (table().map(f, "a").batch(2, last="pad"), 0, UP, "pads batches", {}),
    (table().map(f, "b", on_error=Skip()).with_columns(d=col("a")).batch(2), 0, UP, "rows may be skipped below",
     {"own": True}),
    (table().with_columns(d=col("a")).batch(2), 0, UP, "rows may be skipped below", {"skips": lambda n: not n.inputs}),
    (table().cache().take(2), 0, UP, "does more than process each row", {}),
    (table().batch(2, last="pad").map(f, "a").take(2), 0, UP, "would see the padding", {}),
    (table().filter(B).take(2), 0, UP, "changes the number of rows", {}),
    (table().map(f, "a").take(2), 0, UP, "may skip rows", SKIPPED),
    # ---- groups
    (table().map(f, "a"), 0, Group(1), "finds no equal rows", {}),
    (ids.dedup([["l"]]), 0, Group(1), "no such run", {}),
    (ids.map(f, "l").dedup([["l"]]), 0, Group(1), "may change its features", {}),
    (ids.map(anything).dedup([["l"]]), 0, Group(1), "may change its features", {}),
    (ids.flat_map(lambda m: [m], "m", into="x").dedup([["l"]]), 0, Group(1), "may change its features", {}),
    (ids.cache().dedup([["l"]]), 0, Group(1), "may change its features", {}),
    (cedar.concat((three := ids.map(f, "m")).dedup([["l"]]), three), 1, Group(1), "may change its features", {}),
    # ---- scans
    (table().map(f, "a"), 0, PushFilter(), "not a filter by expression above a source", {}),
    (items().filter(B), 0, PushFilter(), "cannot read some columns before others", {}),
    (cedar.concat((four := table()).filter(B), four), 1, PushFilter(), "others draw from", {}),
    (table().filter(pl.all_horizontal(pl.selectors.integer() > 0)), 0, PushFilter(), "depends on their types", {}),
    (table().filter(B), 0, PushFilter(), "rows may be skipped", SKIPPED),
    (table().filter(B), 0, PushFilter(), "only be read from their beginning", {"streams": True}),
    (table().map(f, "a"), 0, PushColumns(("a",)), "not a source whose columns are known", {}),
    (table().map(anything, dtype={"a": int}), 1, PushColumns(("a",)), "'b' is read", {}),
    (table().map(anything), 1, PushColumns(("a",)), "'b' is read", {}),
    (reads(Whole()).select("b"), 1, PushColumns(("b",)), "cannot leave columns out", {}),
    (reads(Failing()).select("b"), 1, PushColumns(("b",)), "rows may fail in the other columns", SKIPPED),
    (reads(Stub()).select("b"), 1, PushColumns(("s.x", "b")), "cannot select fields", {}),
    (table().select("a"), 1, PushColumns(("b", "a")), "in its order", {}),
    (table().select("a", "b"), 1, PushColumns(("a",)), "column 'b' is read", {}),
    (structs().select("s"), 1, PushColumns(("s.x",)), "column 's' is read", {}),
    (table(), 0, PushColumns(("a", "b", "c")), "it reads these columns already", {}),
    # ---- columns
    (table().shuffle().select("a"), 1, Keep((("a",), ("b",))), "it has other inputs", {}),
    (table().shuffle().select("a"), 1, Keep(((),)), "it has other inputs", {}),
    (table().shuffle().select("a"), 1, Keep((("a", "b", "c"),)), "or all are kept", {}),
    (table().shuffle().select("a"), 1, Keep((("b",),)), "'a' is read", {}),
    (table().shuffle().select("a"), 1, Keep((("b", "a"),)), "order differs", {}),
    (cedar.concat(table(), table()).select("a"), 1, Keep((("a",), ("a", "b"))), "have the same columns", {}),
    (table().with_columns(d=col("a")).select("a"), 1, DropResults((7,)), "no such results", {}),
    (table().with_columns(d=col("a")), 0, DropResults((0,)), "d is read", {}),
    (table().select(x=col("a")).with_columns(y=pl.lit(1)).select("y"), 2, DropResults((0,)), "no result would be", {}),
    (table().with_columns(d=col("a").cast(pl.Int8)).select("a"), 1, DropResults((0,)), "may fail on some row", {}),
    # ---- the same twice
    (table().map(f, "a").map(f, "a"), 0, Share(), "no equal operator", {}),
    (cedar.concat(table().map(f, "a"), table().map(f, "a")), 1, Share(), "no equal operator", {}),
    (cedar.zip((five := table()).map(f, "a").select("a"), five.map(g, "a").select(x="a")), 2, Share(), "no equal", {}),
    (cedar.zip((six := table()).map(drawn, "a", random=True), six.map(drawn, "a", random=True).select(x="a")), 2,
     Share(), "draws other numbers", {}),
    (cedar.zip((seven := table()).map(f, "a"), seven.map(f, "a").select(x="a")), 2, Share(), "both it and", SKIPPED),
    (cedar.zip((eight := table()).cache(), eight.cache().select(x="a")), 2, Share(), "no equal operator", {}),
    # ---- tolerances
    (images().map(image.resize(4), "i"), 0, Loosen(1), "results have to be exact", {}),
    (images(), 0, Loosen(0), "the operators above need the exact result", {"exact": False}),
    (table().map(f, "a"), 0, Loosen(0), "results have to be exact", {"exact": False}),
    (cedar.from_items([{"b": b"x", "l": [1]}]).map(image.decode(), "b", into="i").map(recsys.FirstX(1), "l"), 0,
     Loosen(1), "do not run as one with it", {"exact": False}),
    (cedar.zip((nine := images()).map(image.resize(4), "i"), nine.rename({"i": "x", "b": "c"})), 2, Loosen(1),
     "others draw", {"exact": False}),
    # ---- operators of others
    (table().shuffle(), 0, Replace(select("a")), "not a run of row operators", {}),
    (table().map(f, "a"), 0, Replace(table().take(2).node.operator), "is not a row operator", {}),
    (cedar.concat(shared.map(g, "a"), shared), 1, Replace(FilterExpression(B), 2), "others draw from", {}),
    (table().map(f, "a"), 0, Replace(FilterExpression(B)), "may skip rows", SKIPPED),
    (table().filter(B), 0, Replace(select("a")), "the output columns would differ", {}),
    (table(), 0, Replace(select("a")), "was inserted by the optimizer", {
        "root": lambda node: Node(select("a"), (node,))}),
    (table().map(f, "a"), 0, Replace(table().map(f, "a").node.operator), "already replaces another operator", {
        "root": replaced}),
    # ---- caches
    (table().map(f, "a").map(f, "b"), 1, Cache(0), "not the last of the operators", {}),
    (table().cache("memory").map(f, "a"), 0, Cache(1), "the pipeline says where", {}),
    (table().map(f, "a"), 0, Cache(None), "no cache to remove", {}),
    (table().map(f, "a"), 0, Cache(0), "it cannot be split", {"streams": True}),
    (table().map(drawn, "a", random=True), 0, Cache(1), "not the same in every epoch", {}),
    (table().map(f, "a"), 0, Cache(5), "not the same in every epoch", {}),
    (table().cache().map(f, "a"), 0, Cache(0), "it is already there", {}),
    (cedar.concat(table().map(f, "a"), table()).cache(), 2, Cache(0), "rows are kept further up", {}),
    # ---- places
    (table().shuffle(), 0, Place(("",)), "other operators", {}),
    (table().shuffle(), 0, Place(("", "processes")), "needs order or state", {}),
]  # fmt: skip


def refusal(pipeline: cedar.Pipeline, up: int, step: Step, facts: dict[str, Any]) -> str | None:
    """Why a step is refused at a node; None if it is not."""

    def own(node: Node) -> bool:
        return isinstance(node.operator, RowOperator) and node.operator.on_error is not None

    skips = own if facts.get("own") else facts.get("skips", lambda node: False)
    root = facts.get("root", lambda node: node)(pipeline.node)
    exact, streams = facts.get("exact", True), facts.get("streams", False)
    known = facts_of(pipeline.node, root, skips, exact=exact, streams=lambda _: streams)
    found = step.check(graph.walk(root)[-1 - up], known)
    return None if found is None else found.reason


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_may_not_be_done_is_refused(number: int) -> None:
    pipeline, up, step, reason, facts = REFUSED[number]
    found = refusal(pipeline, up, step, facts)
    assert found is not None, step
    assert reason in found


class Without(ast.NodeTransformer):
    """Leaves out one of the conditions that refuse something.

    Args:
        number: which of them; those before and after it stay.
    """

    def __init__(self, number: int = -1) -> None:
        self.number, self.found = number, list[str]()

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        last = node.body[-1]
        if isinstance(last, ast.Return) and last.value is not None and _refuses(last.value) and self._this(node):
            node.test = ast.BoolOp(ast.And(), [node.test, ast.Constant(False)])
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        choice = node.value
        if isinstance(choice, ast.IfExp):
            for kept, refused in ((choice.orelse, choice.body), (choice.body, choice.orelse)):
                none = isinstance(kept, ast.Constant) and kept.value is None
                if none and _refuses(refused) and self._this(node):
                    node.value = kept
        return node

    def _this(self, node: ast.stmt) -> bool:
        self.found.append(f"line {node.lineno}: {ast.unparse(node)[:90]}")
        return len(self.found) - 1 == self.number


def _refuses(value: ast.expr) -> bool:
    call = isinstance(value, ast.Call) and ast.unparse(value.func) == "Refusal"
    text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return call or text or isinstance(value, ast.JoinedStr)


def outcomes() -> list[str | None]:
    found: list[str | None] = []
    for pipeline, up, step, _, facts in REFUSED:
        try:
            found.append(refusal(pipeline, up, step, facts))
        except Exception as error:  # noqa: BLE001 - a mutant may run into anything
            found.append(type(error).__name__)
    return found


MODULES = [order, pushdown, single]


@pytest.mark.heavy
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_precondition_can_be_left_out(module: ModuleType) -> None:
    """Each is left out in turn: some graph must be refused no more, or for another reason."""
    source, wanted = inspect.getsource(module), outcomes()
    every = Without()
    every.visit(ast.parse(source))
    alive = []
    for number, told in enumerate(every.found):
        tree = Without(number).visit(ast.parse(source))
        space = dict(vars(module))
        exec(compile(ast.fix_missing_locations(tree), module.__file__ or "", "exec"), space)
        with pytest.MonkeyPatch.context() as patch:
            _graft(module, space, patch)
            if outcomes() == wanted:
                alive.append(told)
    assert every.found
    assert not alive, "\n".join(alive)


def _graft(module: ModuleType, mutated: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    """The code of a mutant in the functions as they are, wherever they are held."""
    for name, value in list(vars(module).items()):
        new = mutated.get(name)
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            patch.setattr(value, "__code__", new.__code__)  # type: ignore[union-attr]
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for method, code in vars(value).items():
                if inspect.isfunction(code) and code.__qualname__.startswith(f"{name}.") and hasattr(new, method):
                    patch.setattr(code, "__code__", getattr(new, method).__code__)
