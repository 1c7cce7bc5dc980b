"""The settings that a DLRM configuration file may contain, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cedar.trainers.common import config
from cedar.trainers.common.config import check_choices, not_negative, positive

Rule = Literal["rowwise_adagrad", "sgd", "adam"]
Planner = Literal["greedy", "milp"]
Sharding = Literal["auto", "tables", "rows", "columns", "hot"]
Pooling = Literal["sum", "mean", "attention", "transformer"]


@dataclass(frozen=True)
class FeatureOptions:
    """A column of ids, or of lists of ids, and how to look it up.

    Args:
        column: the column in the data.
        rows: number of rows of its table: ids are 0 to rows - 1. Optional with a vocabulary.
        table: name of the feature's table, by default the column's name; features with the same name share a table.
        pooling: how a list becomes one vector: ``sum``, ``mean``, ``attention`` with a learned query, or
            ``transformer``, a transformer layer followed by attention.
        longest: maximum length of a list; a longer list raises an error. 0 means no limit.
        weights: a column of lists of floats, one weight per id; needs ``sum``.
        ids: ``asis`` uses ids unchanged; ``modulo`` uses the non-negative remainder of division by ``rows``.
        missing: ``error`` rejects nulls; ``empty`` treats a null list as empty; ``oov``, with a vocabulary, treats a
            null value (not a null list) as out of vocabulary.
        vocabulary: the column whose vocabulary (in ``data.vocabularies``) maps values or strings to ids.
        sliding: whether lists slide: each list is the previous one without its first values and with new ones appended.
            Values shared by neighbors are looked up once, so keep ``data.interleave`` at 1. Needs ``sum`` or ``mean``.
        width: embedding width of its table; 0: the model's.
    """

    column: str
    rows: int = 0
    table: str = ""
    pooling: Pooling = "sum"
    longest: int = 0
    weights: str = ""
    ids: Literal["asis", "modulo"] = "asis"
    missing: Literal["error", "empty", "oov"] = "error"
    vocabulary: str = ""
    sliding: bool = False
    width: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        if self.rows < 1 and not (self.rows == 0 and self.vocabulary):
            raise ValueError(f"rows of {self.column!r} is {self.rows}: give 1 or more, or a vocabulary")
        if self.vocabulary and self.ids != "asis":
            raise ValueError(f"{self.column!r} has a vocabulary: set ids to asis")
        if self.missing == "oov" and not self.vocabulary:
            raise ValueError(f"{self.column!r} has missing = 'oov', which needs a vocabulary")
        if self.sliding and (self.pooling not in ("sum", "mean") or self.weights):
            raise ValueError(f"{self.column!r} has sliding lists: its pooling must be sum or mean, without weights")
        for name in ("longest", "width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of {self.column!r} is {getattr(self, name)}: give 0 or more")
        if self.weights and self.pooling != "sum":
            raise ValueError(f"{self.column!r} has weights: its pooling must be sum, not {self.pooling}")

    @property
    def home(self) -> str:
        """The name of the feature's table."""
        return self.table or self.column

    @property
    def sequence(self) -> bool:
        """Whether a list's vectors stay separate until a module pools them."""
        return self.pooling in ("attention", "transformer")

    @property
    def single(self) -> bool:
        """Whether ids are looked up one by one and pooled later."""
        return self.sequence or self.sliding


@dataclass(frozen=True)
class DataOptions:
    """Where rows come from, and in which order."""

    paths: str | tuple[str, ...] = ()  # one or more paths, globs or URLs of Parquet files
    # instead of ``paths``: ``module:name`` of a cedar pipeline of rows, or of a function that returns one
    pipeline: str = ""
    label: str = "label"  # the column to predict: 0 or 1
    dense: tuple[str, ...] = ()  # numeric columns; nulls count as 0
    log: tuple[str, ...] = ()  # dense columns of counts: transformed by log(1 + max(x, 0))
    batch: int = 2048  # rows per step over all ranks; must be a multiple of the number of ranks
    session: str = ""  # the column of session ids; shuffling keeps a session's rows together
    shuffle: bool = True  # shuffle sessions, or rows without a session column
    interleave: int = 1  # number of sessions that are interleaved
    # ``auto``, ``off``, or lists of columns that repeat together. See docs/dedup.md.
    dedup: str | tuple[tuple[str, ...], ...] = "auto"
    held_out: int = 0  # number of rows at the end of the data reserved for evaluation
    evaluate: str | tuple[str, ...] = ()  # files for evaluation, instead of ``held_out``
    # vocabulary files, or output folders of ``cedar data vocab``. Features refer to them by column. Checkpoints hold
    # a copy, and cannot be loaded with other vocabularies.
    vocabularies: tuple[str, ...] = ()
    plan: Literal["auto", "off"] = "auto"  # see ``Pipeline.loader`` for plan, executor and workers
    executor: str = "auto"  # where the pipeline runs
    workers: int = 0  # number of workers; 0: the executor decides

    def __post_init__(self) -> None:
        check_choices(self)
        positive(self, "batch", "interleave")
        if self.paths and self.pipeline:
            raise ValueError("give either paths or a pipeline")
        if isinstance(self.dedup, str) and self.dedup not in ("auto", "off"):
            raise ValueError(f'dedup is {self.dedup!r}: give "auto", "off", or lists of columns')
        if extra := set(self.log) - set(self.dense):
            raise ValueError(f"log names {', '.join(sorted(extra))}, which are not in dense")
        if self.held_out < 0 or (self.held_out and self.evaluate):
            raise ValueError("held_out must be a number of rows, without evaluate")


@dataclass(frozen=True)
class ModelOptions:
    """Options of the model."""

    width: int = 16  # width of an embedding
    bottom: tuple[int, ...] = (64,)  # units of the bottom MLP's layers; a layer of ``width`` units follows
    top: tuple[int, ...] = (64,)  # units of the top MLP's layers; a layer for the logit follows
    # ``dot``: dot products of all pairs (arXiv 1906.00091); ``dcn``: DCN-v2 (arXiv 2008.13535)
    interaction: Literal["dot", "dcn"] = "dot"
    cross: int = 3  # number of DCN-v2 layers
    rank: int = 32  # rank of the DCN-v2 matrices
    heads: int = 4  # attention heads of a transformer
    dropout: float = 0.0  # dropout probability of transformers in training
    # apply dropout to unique rows, so that equal rows share a mask; otherwise deduplicated features are expanded before
    # pooling with dropout
    repeat_dropout: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        positive(self, "width", "cross", "rank", "heads")
        if min((*self.bottom, *self.top), default=1) < 1:
            raise ValueError("a layer in bottom or top has no units: give 1 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give 0 or more, and less than 1")


@dataclass(frozen=True)
class TableOptions:
    """How embedding tables are stored and updated."""

    rule: Rule = "rowwise_adagrad"  # the fused optimizer
    rate: float = 0.05  # the learning rate
    eps: float = 1e-8  # added to square roots
    dtype: Literal["float32", "float16"] = "float32"  # dtype of the weights; float16 is rounded stochastically
    # ``auto`` uses fbgemm if it loads and supports the options, else torch
    backend: Literal["auto", "torch", "fbgemm"] = "auto"
    # ``tables``: each table on one rank; ``rows``, ``columns``: split over all ranks; ``hot``: by rows, with frequent
    # rows of sequence tables on every rank if that sends less; ``auto``: ``hot`` for tables that cost more than a
    # rank's share or fit on no rank
    sharding: Sharding = "tables"
    planner: Planner = "greedy"  # how unsplit tables are assigned: ``greedy``, or ``milp`` for the optimum by OR-tools
    memory: int = 0  # limit per rank in bytes of tables and optimizer state; 0 for none
    # bytes in memory or on the device, for the most frequent rows; other rows are in a file; 0: keep all in memory
    fast: int = 0
    slow: str = ""  # folder of the file; empty: run.folder
    slow_cost: float = 10.0  # cost of a row in the file relative to one in memory

    def __post_init__(self) -> None:
        check_choices(self)
        not_negative(self, "memory", "fast")


@dataclass(frozen=True)
class OptimizerOptions:
    """Optimizer of all parameters except tables.

    Args:
        rule: the optimizer from torch.optim.
        rate: the learning rate.
        warmup: number of steps over which both learning rates grow linearly.
    """

    rule: Literal["adagrad", "sgd", "adam"] = "adagrad"
    rate: float = 0.02
    warmup: int = 0

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True)
class RunOptions(config.RunOptions):
    """Options of a run. Weights are float32 with bfloat16 computation; float64 makes tables float64, too.

    Args:
        steps: number of steps; 0: one epoch.
        evaluate_every: steps between evaluations; 0: evaluate only at the end.
        window: number of recent rows for the AUC and normalized entropy that progress shows. Their predictions were
            made before the model trained on them.
    """

    folder: str = "runs/dlrm"
    save_every: int = 100
    evaluate_every: int = 0
    window: int = 65536

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "window")
        not_negative(self, "evaluate_every")


@dataclass(frozen=True)
class Options:
    """All options: one table of the file per field; ``features`` is a list of tables."""

    data: DataOptions
    features: tuple[FeatureOptions, ...]
    model: ModelOptions = field(default_factory=ModelOptions)
    tables: TableOptions = field(default_factory=TableOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        if not self.features and not self.data.dense:
            raise ValueError("no features are configured: add [[features]], or data.dense")
        columns = [feature.column for feature in self.features]
        if twice := {c for c in columns if columns.count(c) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))} used by several features: use each column once")
        rows: dict[str, int] = {}
        for feature in self.features:
            if not feature.rows:  # the vocabulary's size is used
                continue
            if rows.setdefault(feature.home, feature.rows) != feature.rows:
                raise ValueError(f"table {feature.home!r} has {rows[feature.home]} and {feature.rows} rows")
        for width in [f.width or self.model.width for f in self.features if f.pooling == "transformer"]:
            if width % self.model.heads:
                raise ValueError(f"width {width} is not divisible by heads {self.model.heads}")
