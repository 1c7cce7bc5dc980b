"""The settings of a run: what a configuration file may say, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cedar.trainers.common import config
from cedar.trainers.common.config import not_negative, positive

Rule = Literal["rowwise_adagrad", "sgd", "adam"]
Planner = Literal["greedy", "milp"]
Sharding = Literal["auto", "tables", "rows", "columns", "hot"]
Pooling = Literal["sum", "mean", "attention", "transformer"]


@dataclass(frozen=True)
class FeatureOptions:
    """A column of ids, or of lists of ids, and how it is looked up.

    Args:
        column: of the data.
        rows: of its table: ids are 0 to rows - 1. With a vocabulary it may be left out.
        table: its name; features that name the same share one. Default: the column's.
        pooling: how a list becomes one vector: ``sum``, ``mean``, ``attention`` with a learned query, or a
            ``transformer`` layer and then attention.
        longest: the most ids that a list may have; 0 for no promise. A longer one is an error.
        weights: a column of lists of floats, one for each id, for ``sum``.
        ids: ``asis``; or ``modulo``: their remainder by ``rows``, never negative.
        missing: a null is an ``error``; a null list may be ``empty``; with a vocabulary, a null value (not a list) may
            be ``oov``: it counts as all that the vocabulary does not hold.
        vocabulary: the column whose vocabulary (of ``data.vocabularies``) turns values, or strings, into ids.
        sliding: lists slide: each is the one before it, less its first values, and with new ones at its end. Values
            that neighbors share are looked up once, so leave ``data.interleave`` at 1. For ``sum`` and ``mean``.
        width: of its table's embeddings; 0: the model's.
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
        if self.rows < 1 and not (self.rows == 0 and self.vocabulary):
            raise ValueError(f"rows of {self.column!r} is {self.rows}: give 1 or more, or a vocabulary")
        if self.vocabulary and self.ids != "asis":
            raise ValueError(f"{self.column!r} has a vocabulary: its ids are asis")
        if self.missing == "oov" and not self.vocabulary:
            raise ValueError(f"missing values of {self.column!r} are oov: name the vocabulary")
        if self.sliding and (self.pooling not in ("sum", "mean") or self.weights):
            raise ValueError(f"{self.column!r} slides: its pooling must be sum or mean, without weights")
        for name in ("longest", "width"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of {self.column!r} is {getattr(self, name)}: give 0 or more")
        if self.weights and self.pooling != "sum":
            raise ValueError(f"{self.column!r} has weights: its pooling must be sum, not {self.pooling}")

    @property
    def home(self) -> str:
        """The name of the table."""
        return self.table or self.column

    @property
    def sequence(self) -> bool:
        """Whether the ids of a list stay apart until a module pools them."""
        return self.pooling in ("attention", "transformer")

    @property
    def single(self) -> bool:
        """Whether ids are looked up one by one, and pooled later."""
        return self.sequence or self.sliding


@dataclass(frozen=True)
class DataOptions:
    """Where rows come from, and in which order."""

    paths: str | tuple[str, ...] = ()  # Parquet files: a path, a glob or a URL, or several
    # ``module:name`` of a cedar pipeline of rows, or of a function that makes one, in place of ``paths``
    pipeline: str = ""
    label: str = "label"  # the column to predict: 0 or 1
    dense: tuple[str, ...] = ()  # columns of numbers; nulls count as 0
    log: tuple[str, ...] = ()  # those of them that are counts: log(1 + x), negative ones as 0
    batch: int = 2048  # rows of a step, over all ranks; a multiple of their number
    session: str = ""  # the column that says which rows belong together; shuffling keeps them so
    shuffle: bool = True  # sessions, or rows if there is no session
    interleave: int = 1  # sessions that are mixed with each other
    # ``auto``, ``off``, or lists of columns: what repeats together. See docs/dedup.md.
    dedup: str | tuple[tuple[str, ...], ...] = "auto"
    held_out: int = 0  # rows at the end of the data that only evaluation sees
    evaluate: str | tuple[str, ...] = ()  # other files for evaluation, in place of ``held_out``
    # files, or folders of ``cedar data vocab``, that say how ids are created: features name them, checkpoints hold a
    # copy,
    # and refuse others
    vocabularies: tuple[str, ...] = ()
    plan: Literal["auto", "off"] = "auto"  # ``auto`` or ``off``; executor and workers as of ``p.loader``
    executor: str = "auto"  # where the pipeline runs
    workers: int = 0  # of the executor; 0: as many as it likes

    def __post_init__(self) -> None:
        positive(self, "batch", "interleave")
        if self.paths and self.pipeline:
            raise ValueError("give either paths or a pipeline")
        if isinstance(self.dedup, str) and self.dedup not in ("auto", "off"):
            raise ValueError(f'dedup is {self.dedup!r}: give "auto", "off", or lists of columns')
        if extra := set(self.log) - set(self.dense):
            raise ValueError(f"log names {', '.join(sorted(extra))}, which dense does not")
        if self.held_out < 0 or (self.held_out and self.evaluate):
            raise ValueError("held_out is a number of rows, and stands in place of evaluate")


@dataclass(frozen=True)
class ModelOptions:
    """The model."""

    width: int = 16  # of an embedding
    bottom: tuple[int, ...] = (64,)  # units of the layers over dense features; one of ``width`` follows
    top: tuple[int, ...] = (64,)  # units of the layers over the interaction; one that gives the logit follows
    # ``dot`` products of all pairs (arXiv 1906.00091), or ``dcn`` (DCN-v2, arXiv 2008.13535)
    interaction: Literal["dot", "dcn"] = "dot"
    cross: int = 3  # layers of DCN-v2
    rank: int = 32  # of their matrices
    heads: int = 4  # of the attention of a transformer
    dropout: float = 0.0  # share of values that a transformer drops while training
    # let rows that are equal share the mask of dropout: without it, features that are deduplicated are expanded before
    # they are pooled with dropout
    repeat_dropout: bool = False

    def __post_init__(self) -> None:
        positive(self, "width", "cross", "rank", "heads")
        if min((*self.bottom, *self.top), default=1) < 1:
            raise ValueError("a layer has no units: give 1 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give 0 or more, and less than 1")


@dataclass(frozen=True)
class TableOptions:
    """How embedding tables are kept."""

    rule: Rule = "rowwise_adagrad"  # how rows are updated
    rate: float = 0.05  # the learning rate
    eps: float = 1e-8  # added to roots
    dtype: Literal["float32", "float16"] = "float32"  # of the weights; float16 rounds stochastically
    # ``auto`` takes fbgemm where it loads and does what is asked, else torch
    backend: Literal["auto", "torch", "fbgemm"] = "auto"
    # ``tables``: each whole on one rank; ``rows``, ``columns``: each cut over all ranks; ``hot``: by rows, and of
    # sequences the frequent rows on every rank, where less is sent so; ``auto``: ``hot`` where a table costs more than
    # a rank's share, or fits on none
    sharding: Sharding = "tables"
    planner: Planner = "greedy"  # who keeps whole tables: ``greedy``; ``milp``: the best there is, by OR-tools
    memory: int = 0  # bytes of tables and their optimizer state that a rank may hold; 0 for no limit
    # bytes of them in memory, or on the device: rows that are looked up most; the others are in a file; 0: all
    fast: int = 0
    slow: str = ""  # the folder of that file; empty: run.folder
    slow_cost: float = 10.0  # of a row there, in those in memory: tables are spread over ranks by it

    def __post_init__(self) -> None:
        not_negative(self, "memory", "fast")


@dataclass(frozen=True)
class OptimizerOptions:
    """How everything else learns.

    Args:
        rule: of torch.optim.
        rate: the learning rate.
        warmup: steps in which both rates grow linearly.
    """

    rule: Literal["adagrad", "sgd", "adam"] = "adagrad"
    rate: float = 0.02
    warmup: int = 0


@dataclass(frozen=True)
class RunOptions(config.RunOptions):
    """One run; weights are float32 next to bfloat16, and float64 holds tables in float64, too.

    Args:
        steps: how many; 0: one epoch.
        evaluate_every: steps; 0: only at the end.
        window: rows of which the AUC and the normalized entropy that progress shows are taken, as they were predicted
            before they were learned from.
    """

    folder: str = "runs/dlrm"
    evaluate_every: int = 0
    window: int = 65536

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "window")
        not_negative(self, "evaluate_every")


@dataclass(frozen=True)
class Options:
    """All of it: one table of the file each; ``features`` is a list of tables."""

    data: DataOptions
    features: tuple[FeatureOptions, ...]
    model: ModelOptions = field(default_factory=ModelOptions)
    tables: TableOptions = field(default_factory=TableOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        if not self.features and not self.data.dense:
            raise ValueError("there are no features: add [[features]], or data.dense")
        columns = [feature.column for feature in self.features]
        if twice := {c for c in columns if columns.count(c) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))}: a column is one feature")
        rows: dict[str, int] = {}
        for feature in self.features:
            if not feature.rows:  # the vocabulary will say
                continue
            if rows.setdefault(feature.home, feature.rows) != feature.rows:
                raise ValueError(f"table {feature.home!r} has {rows[feature.home]} rows, and {feature.rows}")
        for width in [f.width or self.model.width for f in self.features if f.pooling == "transformer"]:
            if width % self.model.heads:
                raise ValueError(f"a width of {width} cannot be cut into {self.model.heads} heads")
