"""Programs: the kernel steps that a chain's tasks run, in the plan's order and, as a fallback, in the written order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cedar.core.block import Block
from cedar.core.columns import ColumnType
from cedar.engine.binding import Binding
from cedar.operators.base import BlockKernel, Env, Operator
from cedar.plan.graph import Node, Scan, narrowed
from cedar.plan.physical import Branch, Link, Physical
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
        nodes: list[Node | Branch] = []
        for link in links:
            node = link if isinstance(link, Branch) else self.physical.nodes[link]
            if isinstance(node, Branch) or node.storage is None:
                nodes.append(node)
        steps = tuple(fuse_steps([*first, *map(self._step, nodes), *last]))
        operator = self.physical.nodes[scan].operator if scan >= 0 else None
        scanned = operator if isinstance(operator, Scan) else None
        where = scanned.where if scanned is not None else ()
        written = self._written([*where, *nodes])
        kept = [n for n in nodes if isinstance(n, Branch) or self.binding.ordinal(n) >= 0]
        if not where and written == kept:
            return Program(steps)
        for i, n in enumerate(written):
            if isinstance(n, Node) and n.operator is n.logical.operator:
                written[i] = n.logical
        narrow: list[KernelStep] = []  # drops the columns that the plan drops
        if len(kept) < len(nodes) or (scanned is not None and scanned.columns is not None):
            end = next((link for link in reversed(links) if isinstance(link, int)), scan)
            if end >= 0 and (names := self.physical.nodes[end].schema) is not None:
                narrow.append(KernelStep(_ProjectKernel(dict(names))))
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

    def _written(self, links: Sequence[Node | Branch]) -> list[Node | Branch]:
        """Sort operators as the user wrote them, within each branch of a concat; drop those the optimizer inserted."""
        written: list[Any] = []
        start = 0  # where the current branch begins
        for link in links:
            if isinstance(link, Branch):
                written.append(link)
                start = len(written)
            elif self.binding.ordinal(link) >= 0:
                insort(written, link, start, key=self.binding.ordinal)
        return written


@dataclass(frozen=True)
class _ProjectKernel(BlockKernel):
    """Kernel that selects columns, if they exist in the block, and within structs only the fields that a scan reads."""

    types: dict[str, ColumnType]

    def __call__(self, block: Block, env: Env) -> Block:
        present = {name: kind for name, kind in self.types.items() if name in block.columns}
        return block.only_columns({name: narrowed(block.columns[name], kind) for name, kind in present.items()})
