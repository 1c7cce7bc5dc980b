"""cedar: input pipelines for machine-learning training.

Public names are imported when first used, so ``import cedar`` only takes milliseconds.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from cedar.core.packages import register as _register

if TYPE_CHECKING:
    from polars import col as col

    from cedar.cluster.service import Service as Service
    from cedar.core.errors import CedarError as CedarError
    from cedar.core.errors import PipelineError as PipelineError
    from cedar.core.errors import PlanError as PlanError
    from cedar.core.errors import ResumeError as ResumeError
    from cedar.core.errors import RowError as RowError
    from cedar.core.errors import Skip as Skip
    from cedar.core.errors import SourceError as SourceError
    from cedar.core.errors import WorkerError as WorkerError
    from cedar.core.inverse import InverseKeyedJaggedTensor as InverseKeyedJaggedTensor
    from cedar.core.jagged import JaggedTensor as JaggedTensor
    from cedar.engine.delivery.loader import Loader as Loader
    from cedar.lake.by_ending import read as read
    from cedar.lake.convert import convert as convert
    from cedar.lake.convert import optimize_layout as optimize_layout
    from cedar.lake.reading import read_lance as read_lance
    from cedar.lake.reading import read_vortex as read_vortex
    from cedar.lake.writing import Written as Written
    from cedar.pipeline.core import Pipeline as Pipeline
    from cedar.pipeline.sources import concat as concat
    from cedar.pipeline.sources import from_arrow as from_arrow
    from cedar.pipeline.sources import from_huggingface as from_huggingface
    from cedar.pipeline.sources import from_items as from_items
    from cedar.pipeline.sources import from_iterable as from_iterable
    from cedar.pipeline.sources import from_numpy as from_numpy
    from cedar.pipeline.sources import from_pandas as from_pandas
    from cedar.pipeline.sources import from_polars as from_polars
    from cedar.pipeline.sources import from_source as from_source
    from cedar.pipeline.sources import mix as mix
    from cedar.pipeline.sources import read_arrow as read_arrow
    from cedar.pipeline.sources import read_csv as read_csv
    from cedar.pipeline.sources import read_files as read_files
    from cedar.pipeline.sources import read_jsonl as read_jsonl
    from cedar.pipeline.sources import read_parquet as read_parquet
    from cedar.pipeline.sources import read_tar as read_tar
    from cedar.pipeline.sources import read_text as read_text
    from cedar.pipeline.sources import zip as zip
    from cedar.pipeline.versioned import read_delta as read_delta
    from cedar.pipeline.versioned import read_iceberg as read_iceberg
    from cedar.plan.data import Budget as Budget
    from cedar.plan.data import Plan as Plan
    from cedar.preprocessing import Fitted as Fitted
    from cedar.preprocessing import fit as fit
    from cedar.profile import Profile as Profile
    from cedar.watch.served import served_by as served_by
    from cedar.watch.traces import merge_traces as merge_traces
    from cedar.watch.traces import view_trace as view_trace

__version__ = "0.1.0"

for _name in ("cluster", "lake", "watch"):
    _register(_name, f"cedar.{_name}")

_HOMES = {
    "cedar.core.errors": (
        "CedarError", "PipelineError", "PlanError", "ResumeError", "RowError", "Skip", "SourceError", "WorkerError",
    ),
    "cedar.engine.delivery.loader": ("Loader",),
    "cedar.cluster.service": ("Service",),
    "cedar.core.inverse": ("InverseKeyedJaggedTensor",),
    "cedar.core.jagged": ("JaggedTensor",),
    "cedar.core.packages": ("col",),
    "cedar.lake.convert": ("convert", "optimize_layout"),
    "cedar.lake.by_ending": ("read",),
    "cedar.pipeline.core": ("Pipeline",),
    "cedar.pipeline.sources": (
        "concat", "from_arrow", "from_huggingface", "from_items", "from_iterable", "from_numpy", "from_pandas",
        "from_polars", "from_source", "mix", "read_arrow", "read_csv", "read_files", "read_jsonl", "read_parquet",
        "read_tar", "read_text", "zip",
    ),
    "cedar.pipeline.versioned": ("read_delta", "read_iceberg"),
    "cedar.lake.reading": ("read_lance", "read_vortex"),
    "cedar.lake.writing": ("Written",),
    "cedar.plan.data": ("Budget", "Plan"),
    "cedar.preprocessing": ("Fitted", "fit"),
    "cedar.profile": ("Profile",),
    "cedar.watch.served": ("served_by",),
    "cedar.watch.traces": ("merge_traces", "view_trace"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "preprocessing":  # so that cedar.preprocessing.StandardScaler works without another import
        return importlib.import_module("cedar.preprocessing")
    home = _HOME_OF.get(name)
    if home is None:
        if name[0] == "_":
            raise AttributeError(f"module 'cedar' has no attribute {name!r}")
        if importlib.util.find_spec(f"cedar.{name}") is not None:
            return importlib.import_module(f"cedar.{name}")
        raise importlib.import_module("cedar.core.foreign").unknown_function(name, __all__)
    value = getattr(importlib.import_module(home), name)
    if name in ("Budget", "Service", "Skip"):  # the classes that users construct
        value = importlib.import_module("cedar.core.foreign").with_suggestions(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"})
