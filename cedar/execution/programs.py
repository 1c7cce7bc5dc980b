"""Programs: what the tasks of a chain do, in the order of a plan and in the order as written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from cedar import graph
from cedar.block import Block
from cedar.columns import ColumnType
from cedar.execution.binding import Binding
from cedar.execution.chain import Program, Reader, Step
from cedar.execution.fusing import fuse_steps
from cedar.execution.scanning import scan_reader
from cedar.graph import Node
from cedar.operators.base import Env, Schema
from cedar.operators.cache import Cache
from cedar.plan.scan import Scan, narrowed


@dataclass(frozen=True)
class Within:
    """The kernel that gives rows the branch of their input of a concat."""

    index: int

    def __call__(self, block: Block, env: Env) -> Block:
        return block.within(self.index)


Link: TypeAlias = "Node | Within"


@dataclass(frozen=True)
class Programs:
    """Makes the programs of one compiled graph.

    Args:
        binding: the bound operators of the pipeline as written.
        root: the graph that runs.
        dry: no kernel is bound, so no function and no sample is run.
    """

    binding: Binding
    root: Node
    dry: bool = False

    @cached_property
    def _schemas(self) -> dict[int, Schema]:
        return graph.schemas(self.root)

    def of(
        self, links: Sequence[Link], first: Sequence[Step] = (), last: Sequence[Step] = (), scan: Node | None = None
    ) -> Program:
        """The program of a chain.

        Args:
            links: its operators, lowest first.
            first, last: steps below and above them.
            scan: the source right below, whose filters count as part of the chain where it has some.
        """
        if self.dry:
            return Program()
        links = [n for n in links if isinstance(n, Within) or not isinstance(n.operator, Cache)]
        steps = tuple(fuse_steps([*first, *map(self._step, links), *last]))
        where = list(scan.operator.where) if scan is not None and isinstance(scan.operator, Scan) else []
        if not where and self._in_order(links):
            return Program(steps)
        written = [n if isinstance(n, Within) else _as_written(n) for n in self._written([*where, *links])]
        narrow = self._narrow(scan, links)
        return Program(steps, tuple(fuse_steps([*first, *map(self._step, written), *narrow, *last])))

    def scan(self, node: Node, plain: Reader) -> Any:
        """The reader of a source: the plain one, or one that reads less."""
        if self.dry or not isinstance(node.operator, Scan):
            return plain
        where = [self._step(n) for n in node.operator.where]
        predicates = [n.operator.predicate for n in node.operator.where]  # type: ignore[attr-defined]
        return scan_reader(plain, node.operator.columns, where, predicates)

    def _step(self, link: Link) -> Step:
        if isinstance(link, Within):
            return Step(link)
        ordinal = self.binding.ordinal(link)
        operators = (ordinal,) if ordinal >= 0 else ()
        return Step(self.binding.kernel(link), operators, self.binding.label(link), link.site)

    def _in_order(self, links: Sequence[Link]) -> bool:
        """No operator stands before one that the user wrote earlier."""
        numbers = [self.binding.ordinal(n) for n in links if isinstance(n, Node)]
        numbers = [n for n in numbers if n >= 0]
        return numbers == sorted(numbers)

    def _written(self, links: Sequence[Link]) -> list[Link]:
        """The operators in the order as written, without what an optimizer put in; branches of a concat stay apart."""
        runs: list[list[Link]] = [[]]
        for link in links:
            if isinstance(link, Within):
                runs += [[link], []]
            elif self.binding.ordinal(link) >= 0:
                runs[-1].append(link)
        return [link for run in runs for link in sorted(run, key=self._number)]

    def _number(self, link: Link) -> int:
        return 0 if isinstance(link, Within) else self.binding.ordinal(link)

    def _narrow(self, scan: Node | None, links: Sequence[Link]) -> list[Step]:
        """What leaves the columns that the plan's order leaves."""
        drops = any(isinstance(n, Node) and self.binding.ordinal(n) < 0 for n in links)
        drops = drops or (scan is not None and isinstance(scan.operator, Scan) and scan.operator.columns is not None)
        nodes = [n for n in links if isinstance(n, Node)]
        end = nodes[-1] if nodes else scan
        names = self._schemas.get(id(end)) if drops and end is not None else None
        return [] if names is None else [Step(_Only(dict(names)))]


def _as_written(node: Node) -> Node:
    return node.logical if node.operator is node.logical.operator else node


@dataclass(frozen=True)
class _Only:
    """The kernel that leaves some of the columns that are there, and of structs the fields that a scan leaves."""

    types: dict[str, ColumnType]

    def __call__(self, block: Block, env: Env) -> Block:
        held = {name: kind for name, kind in self.types.items() if name in block.columns}
        return block.only_columns({name: narrowed(block.columns[name], kind) for name, kind in held.items()})
