"""Programs: the kernel steps that a chain's tasks run, in the plan's order and, as a fallback, in the written order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cedar.core.block import Block
from cedar.core.columns import ColumnType
from cedar.engine.binding import Binding
from cedar.operators.base import BlockKernel, Env, Operator
from cedar.plan.graph import Node
from cedar.plan.physical import Branch, Link, Physical
from cedar.plan.scan import Scan, narrowed
from cedar.tasks.chain import KernelStep, Program, fuse_steps
from cedar.tasks.reading import Reader
from cedar.tasks.scanning import scan_reader


@dataclass(frozen=True)
class BranchKernel(BlockKernel):
    """Kernel that adds to row keys the number of the concat input that the rows come from."""

    index: int

    def __call__(self, block: Block, env: Env) -> Block:
        return block.within(self.index)


@dataclass(frozen=True)
class Programs:
    """Creates the programs of one physical plan.

    Args:
        binding: the bound operators of the pipeline as written.
        physical: the physical plan that runs.
    """

    binding: Binding
    physical: Physical

    def of(
        self, links: Sequence[Link], first: Sequence[KernelStep] = (), last: Sequence[KernelStep] = (), scan: int = -1
    ) -> Program:
        """Return the program of a chain.

        Args:
            links: the operators of the chain, lowest first.
            first, last: kernel steps to run before and after the operators.
            scan: index of the source directly below, whose pushed-down filters are part of the chain; -1 for none.
        """
        nodes = [link if isinstance(link, Branch) else self.physical.nodes[link] for link in links]
        nodes = [n for n in nodes if isinstance(n, Branch) or n.storage is None]
        steps = tuple(fuse_steps([*first, *map(self._step, nodes), *last]))
        source = self.physical.nodes[scan] if scan >= 0 else None
        where = list(source.operator.where) if source is not None and isinstance(source.operator, Scan) else []
        if not where and self._in_order(nodes):
            return Program(steps)
        written = [n if isinstance(n, Branch) else _as_written(n) for n in self._written([*where, *nodes])]
        end = next((link for link in reversed(links) if isinstance(link, int)), scan)
        narrow = self._narrow(source, nodes, end)
        return Program(steps, tuple(fuse_steps([*first, *map(self._step, written), *narrow, *last])))

    def scan(self, operator: Operator, plain: Reader) -> Any:
        """Return the reader of a source: ``plain``, or for a Scan a reader of only its columns and matching rows."""
        if not isinstance(operator, Scan):
            return plain
        where = [self._step(n) for n in operator.where]
        predicates = [n.condition for n in operator.where]
        return scan_reader(plain, operator.columns, where, predicates)

    def _step(self, link: Node | Branch) -> KernelStep:
        if isinstance(link, Branch):
            return KernelStep(BranchKernel(link.input))
        ordinal = self.binding.ordinal(link)
        operators = (ordinal,) if ordinal >= 0 else ()
        policy = self.binding.policy(link)
        return KernelStep(self.binding.kernel(link), operators, self.binding.label(link), link.site, on_error=policy)

    def _in_order(self, links: Sequence[Node | Branch]) -> bool:
        """Whether all operators are in the order in which the user wrote them."""
        numbers = [self._number(n) for n in links if isinstance(n, Node)]
        numbers = [n for n in numbers if n >= 0]
        return numbers == sorted(numbers)

    def _written(self, links: Sequence[Node | Branch]) -> list[Node | Branch]:
        """Sort operators as the user wrote them, within each branch of a concat; drop those the optimizer inserted."""
        runs: list[list[Node | Branch]] = [[]]
        for link in links:
            if isinstance(link, Branch):
                runs += [[link], []]
            elif self._number(link) >= 0:
                runs[-1].append(link)
        return [link for run in runs for link in sorted(run, key=self._number)]

    def _number(self, link: Node | Branch) -> int:
        return 0 if isinstance(link, Branch) else self.binding.ordinal(link)

    def _narrow(self, source: Node | None, links: Sequence[Node | Branch], end: int) -> list[KernelStep]:
        """Return a step that drops the columns that the plan drops; [] if the plan drops none."""
        drops = any(self._number(n) < 0 for n in links)
        drops = drops or (
            source is not None and isinstance(source.operator, Scan) and source.operator.columns is not None
        )
        names = self.physical.works[end].schema if drops and end >= 0 else None
        return [] if names is None else [KernelStep(_ProjectKernel(dict(names)))]


def _as_written(node: Node) -> Node:
    return node.logical if node.operator is node.logical.operator else node


@dataclass(frozen=True)
class _ProjectKernel(BlockKernel):
    """Kernel that selects columns, if they exist in the block, and within structs only the fields that a scan reads."""

    types: dict[str, ColumnType]

    def __call__(self, block: Block, env: Env) -> Block:
        present = {name: kind for name, kind in self.types.items() if name in block.columns}
        return block.only_columns({name: narrowed(block.columns[name], kind) for name, kind in present.items()})
