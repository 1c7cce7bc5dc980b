"""Binding: create the kernels, types and skip policies of a pipeline's operators, once per loader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

from cedar.core.block import Block, concat_blocks
from cedar.core.columns import UNKNOWN, ColumnType, blank
from cedar.core.cursor import hash_ints, no_keys
from cedar.core.errors import RowRef, Skip
from cedar.core.numeric import NumericEnvironment
from cedar.core.printable import one_line
from cedar.datasets.base import Read, row_bytes_of, url_of_row
from cedar.engine.dedup import wide_sample
from cedar.executors.isolated import IsolatedCalls
from cedar.operators.base import BlockKernel, Bound, Env, RowOperator, StreamOperator, block_kernel
from cedar.operators.dedup import MakesGroups, for_groups
from cedar.operators.surveys import Surveyed
from cedar.plan import graph
from cedar.plan.graph import Node, Scan, chosen_fields, narrowed, narrowed_type, source_of
from cedar.plan.lower import Choice, lower, policy_of
from cedar.plan.physical import Physical
from cedar.plan.splits import Counts, Splits
from cedar.profile import Subject
from cedar.tasks.chain import plain_copy
from cedar.tasks.reading import Reader

if TYPE_CHECKING:
    from cedar.operators.mix import Mix

SAMPLE_ROWS = 64
_FURTHER = (SAMPLE_ROWS * 16, SAMPLE_ROWS * 1024)  # sizes of larger samples, used if the first has no usable rows
_LOWERED = 8  # number of physical plans to cache: those of the current and previous graphs, the one as written, ...
_FEW_ROWS = 8  # sample rows, enough to find the shape of the input of a transform that the plan moved


class Binding:
    """Kernels and samples of a graph's nodes, created on first use.

    Args:
        root: the pipeline's last node.
        on_error: the loader's default skip policy.
        env: seed, instances and numeric environment of the run. The run reuses instances that were created for
            samples, such as loaded models.
        call_in_subprocess: calls functions on samples in another process; None calls them in this process.
        counts: counts the rows that pass the filters; see ``Splits``.
    """

    def __init__(
        self,
        root: Node,
        on_error: Skip | None,
        env: Env,
        call_in_subprocess: IsolatedCalls | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.root = root
        self.nodes = graph.walk(root)
        self.index = {id(node): i for i, node in enumerate(self.nodes)}
        self.sources = graph.sources(root)
        self._source_ordinals = {id(node): i for i, node in enumerate(self.sources)}
        self.labels = graph.labels(root)
        self.on_error = on_error
        self.call_in_subprocess = call_in_subprocess
        # Only functions and the user's own sources depend on the numeric environment.
        self.numeric = env.numeric if graph.calls_functions(root) else None
        self.check_env = replace(
            env, epoch=0, sampling=True, call_in_subprocess=call_in_subprocess, numeric=self.numeric
        )
        self.marks = any(isinstance(node.operator, MakesGroups) for node in self.nodes)
        self._kernels: dict[int, BlockKernel] = {}
        self._bound: dict[int, BlockKernel] = {}
        self._moved_nodes: dict[int, bool] = {}
        self._kept_alive: list[Node] = []  # references to nodes of plans, so that their ids are not reused
        self._samples: dict[tuple[int, int], Block] = {}
        self.splits = Splits(root, counts, on_error)
        self._lowered: deque[tuple[Physical, bool]] = deque(maxlen=_LOWERED)
        self.any_order = False  # whether rows are delivered as they finish
        self.parts = False  # whether the key of a batch lists the rows in the batch
        self._draws = _draw_seeds(self.nodes)
        self.schemas = graph.schemas(root)

    @cached_property
    def subject(self) -> Subject:
        """Identifies profiles of this pipeline by its operators and their parameters, regardless of code and data."""
        labels = {i: self.labels[id(node)] for i, node in enumerate(self.nodes)}
        return Subject(graph.digest([graph.topology(self.root), list(labels.values())]), labels)

    def begin(self, environment: Callable[[], NumericEnvironment]) -> NumericEnvironment | None:
        """Begin a run; return the numeric environment for its functions, or None if the pipeline has no functions."""
        for node in self.nodes:
            if isinstance(node.operator, Surveyed):
                with graph.at_site(node):
                    _ = node.operator.survey.under(self.policy(node)).value
        if self.numeric is not None:
            self.numeric = environment()
            self.check_env = replace(self.check_env, numeric=self.numeric)
        return self.numeric

    # When given a node of a plan, the methods below use the corresponding node of the pipeline as written.

    @property
    def unsteady(self) -> list[str]:
        """Notes on functions whose results differ between two calls with the same sample row."""
        return [text for text in (self.check_env.unsteady or {}).values() if text]

    def label(self, node: Node) -> str:
        """Return the name by which messages refer to a node."""
        return self.labels.get(id(node.origin or node)) or one_line(node.operator.label())

    def ordinal(self, node: Node) -> int:
        """Return a node's index in the pipeline as written; -1 for nodes that the optimizer inserted."""
        return self.index.get(id(node.origin or node), -1)

    @cached_property
    def mixtures(self) -> dict[str, Node]:
        """The nodes that mix inputs, numbered in order; other operators do not affect the numbers."""
        mixtures: dict[str, Node] = {}
        for node in self.nodes:
            if node.row_use.rows == "mixed":
                mixtures[str(len(mixtures))] = node
        return mixtures

    @cached_property
    def scheduled(self) -> bool:
        """Whether weights of a mixture are functions of the loader's step, counted over all epochs."""
        mixes = self.mixtures.values()
        return bool(mixes) and any(callable(w) for node in mixes for w in cast("Mix", node.operator).weights)

    def mixture(self, node: Node) -> str:
        """Return the key of a mixing node in ``mixtures``."""
        return next(number for number, each in self.mixtures.items() if each is (node.origin or node).logical)

    def source_ordinal(self, node: Node) -> int:
        """Return the number that identifies a source in row keys."""
        return self._source_ordinals[id(node.logical)]

    def located(self, row: RowRef) -> RowRef:
        """Return the reference to a row with the URL of its file filled in."""
        return replace(row, url=url_of_row(source_of(self.sources[row.source]), row.file, row.row))

    def policy(self, node: Node) -> Skip | None:
        """Return the policy for rows that fail in an operator; None raises the error."""
        return policy_of(node, self.on_error)

    @cached_property
    def row_bytes(self) -> float:
        """Estimated size of a row in bytes, from the metadata of the sources."""
        size = rows = 0.0
        for source in self.sources:
            assert isinstance(source.operator, Read)
            splits = self.splits(source)
            if (known := splits.measured()) is not None:
                rows, size = rows + known[0], size + known[1]
            elif given := row_bytes_of(source.operator.source):
                rows, size = rows + 1, size + given
        return size / rows if rows and size else 1024.0

    def lowered(self, root: Node, executor: str = "", workers: Callable[[str], int] = lambda _: 1) -> Physical:
        """Return the physical plan of a graph of this pipeline; plans are cached across epochs."""
        on_dask = executor == "dask"  # all other executors get the same stages
        for physical, ran in self._lowered:
            if physical.nodes[-1] is root and ran == on_dask:
                return physical
        settled, any_order = self.splits.settled, self.any_order
        choice = Choice(executor, workers, self.on_error, self.splits, settled=settled, any_order=any_order)
        physical = lower(root, choice, self.root)
        self._lowered.append((physical, on_dask))
        return physical

    @property
    def written(self) -> Physical:
        """The physical plan of the pipeline as written."""
        return self.lowered(self.root)

    def kernel(self, node: Node) -> BlockKernel:
        """Return the bound kernel of a row operator; a plan's node reuses that of its node as written if it can."""
        node = self._where_bound(node)
        if id(node) not in self._kernels:
            operator = node.operator
            assert isinstance(operator, RowOperator)
            with graph.at_site(node):
                effects, declared = operator.effects(), self.schemas.get(id(node.logical)) or {}
                types = {n: t for n, t in declared.items() if effects.writes is None or n in effects.writes}
                self._bound[id(node)] = kernel = block_kernel(operator.bind(self.place(node)), effects.rows, types)
            self._kernels[id(node)] = for_groups(kernel, operator) if self.marks else kernel
            self._kept_alive.append(node)
        return self._kernels[id(node)]

    def bound(self, node: Node) -> BlockKernel:
        """Return the operator's own kernel, without the wrapper that handles groups of columns."""
        self.kernel(node)
        return self._bound[id(self._where_bound(node))]

    def _where_bound(self, node: Node) -> Node:
        """Return the node to bind: the one as written, unless the plan changed the operator or its input's shape."""
        logical = node.logical
        as_written = node.operator is logical.operator and id(logical) in self.index and not self._moved(node)
        return logical if as_written else node

    def _moved(self, node: Node) -> bool:
        """Whether a plan runs a transform after other transforms than as written, so the shape of its input differs."""
        if id(node) not in self._moved_nodes:
            moved = False
            if node.origin is not None and node.operator.effects().algebra is not None:
                moved = _transforms(node.inputs[0]) != _transforms(node.origin.inputs[0])
            self._moved_nodes[id(node)] = moved
            self._kept_alive.append(node)
        return self._moved_nodes[id(node)]

    def place(self, node: Node) -> Bound:
        """Return the context that is passed to a row operator's ``bind``."""
        logical = node.logical
        inserted, moved = id(logical) not in self.index, self._moved(node)
        below = (node if inserted or moved else logical).inputs[0]
        return Bound(
            index=self.ordinal(node),
            label=self.label(node),
            site=node.site,
            draw=self._draws.get(id(logical), 0),
            on_error=None if inserted else self.policy(node),
            batched=not inserted and logical.inputs[0].batched,
            sample=lambda: self._for_calls(node, self._sample(below, _FEW_ROWS) if moved else self.sample(below)),
            types=None if inserted else self.schemas[id(logical.inputs[0])],
            env=self.check_env,
            wide=lambda names, session: wide_sample(self, logical, names, session),
            further=lambda: (self._for_calls(node, block) for block in self._further(below)),
        )

    def rows_after(self, node: Node, rows: int) -> Block:
        """Return up to ``rows`` sample rows of a node's output; the sample is not cached."""
        block = self._sample(node, rows)
        self._samples = {key: sample for key, sample in self._samples.items() if key[1] != rows}
        return block if block.slots <= rows or not block.aligned else block.slice(0, rows)

    def sample(self, node: Node) -> Block:
        """Return up to 64 rows of a node's output; more input rows are read if filters leave none."""
        block = self._sample(node, SAMPLE_ROWS)
        for rows in _FURTHER:
            if len(block):
                break
            block = self._sample(node, rows)
        return block if block.slots <= SAMPLE_ROWS or not block.aligned else block.slice(0, SAMPLE_ROWS)

    def _further(self, node: Node) -> Iterator[Block]:
        """Yield blocks of output rows of a node that follow the rows of its sample."""
        seen = self.sample(node).slots
        for rows in _FURTHER:
            block = self._sample(node, rows)
            while seen < block.slots and block.aligned:
                start, seen = seen, min(seen + SAMPLE_ROWS, block.slots)
                yield block.slice(start, seen)

    def _for_calls(self, node: Node, block: Block) -> Block:
        """Return the block for a call of the user's function, copied if the function could modify shared arrays."""
        if self.call_in_subprocess is not None:
            self.call_in_subprocess.enter(block)  # the call runs in another process
            return block
        return plain_copy(block) if node.operator.calls_functions else block

    def types(self, node: Node) -> dict[str, ColumnType]:
        """Return the column types of a node's output that are known from its sample."""
        return self.sample(node).known_types

    def _sample(self, node: Node, rows: int) -> Block:
        key = (id(node), rows)
        if key not in self._samples:
            self._samples[key] = self._make_sample(node, rows)
            self._kept_alive.append(node)
        return self._samples[key]

    def _make_sample(self, node: Node, rows: int) -> Block:
        operator = node.operator
        if isinstance(operator, Scan):
            return self.scanned(operator, self._sample(node.logical, rows))
        if isinstance(operator, Read):
            return self.first_rows(node, rows)
        below = [self._sample(child, rows) for child in node.inputs]
        if len(below) == 1 and below[0].is_nothing:
            return below[0]
        with graph.at_site(node):
            if isinstance(operator, RowOperator):
                kernel = self.kernel(node)
                return kernel(self._for_calls(node, below[0]), self.check_env)
            assert isinstance(operator, StreamOperator)
            return operator.sample(*below)

    def scanned(self, scan: Scan, block: Block) -> Block:
        """Apply a scan's filters and column selection to a sample of its source."""
        for node in scan.where:
            block = self.kernel(node)(block, self.check_env)
        if scan.columns is None:
            return block
        chosen = chosen_fields(scan.columns, block.columns)
        kinds = {
            name: narrowed_type(block.types[name], paths) for name, paths in chosen.items() if name in block.columns
        }
        return block.only_columns({name: narrowed(block.columns[name], kind) for name, kind in kinds.items()})

    def first_rows(self, node: Node, rows: int) -> Block:
        """Return the first rows of the first non-empty split, or of several splits if more than a sample is wanted."""
        assert isinstance(node.operator, Read)
        # Sampling skips items that fail. The run applies the user's policy when it reads the same items.
        reader = Reader(node.operator.source, self.source_ordinal(node), on_error=Skip(), site=node.site)
        blocks: list[Block] = []
        have = 0
        for split in self.splits(node):
            for block in reader.blocks(split, 0):
                if len(block):
                    # Copy the rows, since a slice would keep the whole row group in memory as long as the loader.
                    blocks.append(block.take(block.live_slots()[: rows - have]))
                    have += blocks[-1].slots
                if have >= rows:
                    return concat_blocks(blocks)
            if blocks and rows == SAMPLE_ROWS:
                break
        if blocks:
            return concat_blocks(blocks)
        schema = self.schemas[id(node.logical)] or {}  # ``node`` may read fewer columns
        return Block({name: blank(kind, 0) for name, kind in schema.items() if kind is not UNKNOWN}, no_keys())


def _transforms(node: Node) -> set[int]:
    """Return the ids of the single-column transforms at or below a node."""
    return {id(n.logical) for n in graph.walk(node) if n.operator.effects().algebra is not None}


def _draw_seeds(nodes: list[Node]) -> dict[int, int]:
    """Return the seed of each random operator: a hash of its name, or its ordinal among random operators."""
    draws: dict[int, int] = {}
    for node in nodes:
        if node.operator.effects().random:
            name = node.operator.named
            named = (
                [int.from_bytes(name.encode()[i : i + 8], "little") for i in range(0, len(name), 8)] if name else None
            )
            draws[id(node)] = hash_ints(*named) if named else len(draws) + 1
    return draws
