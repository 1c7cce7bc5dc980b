"""Uses fbgemm's table-batched embeddings, if the installed version loads with the installed torch.

The wheels of fbgemm do not declare the torch version for which they were built, and fail to load with other versions.
cedar therefore compares versions first. fbgemm updates table rows in the backward pass.
"""

from __future__ import annotations

import copy
import functools
import importlib
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.dlrm.tables import Bags, Table, TableParameters, Tables, initial, joined

# Minor version of torch -> the fbgemm version that was built for it.
PAIRS = {"2.11": "1.6.0", "2.12": "1.7.0", "2.13": "1.8.0", "2.14": "1.9.0"}
_PACKAGES = ("fbgemm-gpu-cpu", "fbgemm-gpu")
_HOME = "fbgemm_gpu.split_table_batched_embeddings_ops_training"


def pin(torch_version: str) -> str:
    """Return the pip command that installs a matching pair of torch and fbgemm.

    Examples:
        >>> pin("2.13.0+cpu")
        'pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0'
        >>> pin("2.5.1")
        'pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0'
    """
    number = torch_version.partition("+")[0]
    fits = PAIRS.get(_minor(number))
    return f"pip install torch=={number if fits else '2.13.0'} fbgemm-gpu-cpu=={fits or PAIRS['2.13']}"


def mismatch(torch_version: str, fbgemm_version: str | None) -> str | None:
    """Return why fbgemm cannot be used with this torch, or None if it can.

    Examples:
        >>> mismatch("2.13.0", "1.8.0")
        >>> mismatch("2.13.0", "1.7.0")
        'fbgemm 1.7.0 was not built for torch 2.13.0'
    """
    if fbgemm_version is None:
        return "fbgemm is not installed"
    fits = PAIRS.get(_minor(torch_version))
    if fits is None or _minor(fits) != _minor(fbgemm_version):
        return f"fbgemm {fbgemm_version} was not built for torch {torch_version}"
    return None


@functools.cache
def module_or_reason() -> tuple[Any, str | None]:
    """Return (fbgemm's embedding module, None), or (None, why it cannot be used)."""
    why = mismatch(torch.__version__, _installed())
    if why is not None:
        return None, why
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(_HOME), None
    except Exception as error:  # noqa: BLE001 - a library built for another torch fails in many ways
        return None, f"fbgemm cannot be loaded: {error}"


def module() -> Any:
    """Return fbgemm's embedding module, or raise ``CedarError``."""
    embeddings, why = module_or_reason()
    if embeddings is None:
        raise CedarError(why or "", fix=f'{pin(torch.__version__)}; or set tables.backend = "torch"')
    return embeddings


def _installed() -> str | None:
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _minor(number: str) -> str:
    return ".".join(number.split(".")[:2])


RULES = {"rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD", "sgd": "EXACT_SGD"}


class FbgemmTables(Tables):
    """Float32 tables of one width; see ``TorchTables``. A step may call ``lookup`` only once.

    For fbgemm, these are a single table, and all bags are bags of a single feature, so that features may have different
    numbers of bags. fbgemm's own support for that costs more on a CPU than the lookups.

    Args:
        tables: at least one table, with unique names.
        width: values per row; must be a multiple of 4.
        rule: ``rowwise_adagrad`` or ``sgd``; fbgemm has no other suitable rule on the CPU.
        held: the module that registers the weights, whose memory fbgemm updates; None creates a ``TableParameters``.
    """

    def __init__(
        self, tables: Sequence[Table], width: int, *, rule: str = "rowwise_adagrad", eps: float = 1e-8, seed: int = 0,
        device: torch.device | None = None, held: TableParameters | None = None,
    ) -> None:  # fmt: skip
        self.tables, self.width, self.rule, self.eps = tuple(tables), width, rule, eps
        self.held = TableParameters() if held is None else held
        self.starts, self._rows, self._key = {}, 0, f"rows of {width}"
        for table in tables:
            self.starts[table.name] = self._rows
            self._rows += table.rows
        self._build(device)
        for table in tables:
            self.state()[f"{table.name}.weight"].copy_(initial(table, width, seed))

    def _build(self, device: torch.device | None) -> None:
        library = module()
        gpu = device is not None and device.type == "cuda"
        place = library.EmbeddingLocation.DEVICE if gpu else library.EmbeddingLocation.HOST
        compute = library.ComputeDevice.CUDA if gpu else library.ComputeDevice.CPU
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._engine = library.SplitTableBatchedEmbeddingBagsCodegen(
                [(self._rows, self.width, place, compute)], optimizer=getattr(library.OptimType, RULES[self.rule]),
                learning_rate=0.0, eps=self.eps, pooling_mode=library.PoolingMode.SUM, device=device,
            )  # fmt: skip
        self.held[self._key] = nn.Parameter(self._engine.split_embedding_weights()[0])

    def begin(self, rate: float, step: int) -> None:
        self._engine.set_learning_rate(rate)

    def lookup(self, bags: Sequence[Bags]) -> list[torch.Tensor]:
        if not bags:
            return []
        ids, offsets, weights, counts = joined(bags, [self.starts[b.table] for b in bags], torch.float32)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.held[self._key].requires_grad):
            return list(torch.split(self._engine(ids, offsets, per_sample_weights=weights), counts))

    def check(self, dtype: torch.dtype) -> None:
        if dtype != torch.float32:
            raise CedarError(
                f"fbgemm's tables are float32, not {str(dtype).removeprefix('torch.')}", done="nothing was moved",
                fix="set backend='torch', or use torch.autocast",
            )  # fmt: skip

    def moved(self, device: torch.device) -> None:
        if device != self._engine.split_embedding_weights()[0].device:
            self._rebuild(device, self.state())

    def __deepcopy__(self, memo: dict[int, Any]) -> FbgemmTables:
        made = memo[id(self)] = copy.copy(self)
        made.held = copy.deepcopy(self.held, memo)
        made._rebuild(self.held[self._key].device, self.state())
        return made

    def _rebuild(self, device: torch.device, state: dict[str, torch.Tensor]) -> None:
        learns = self.held[self._key].requires_grad
        self._build(device)
        self.held[self._key].requires_grad_(learns)
        for name, value in self.state().items():
            value.copy_(state[name])

    def state(self) -> dict[str, torch.Tensor]:
        kinds = {"weight": self._engine.split_embedding_weights()[0]}
        if self.rule == "rowwise_adagrad":
            kinds["sum"] = self._engine.split_optimizer_states()[0][0]
        return {
            f"{table.name}.{kind}": values[self.starts[table.name] : self.starts[table.name] + table.rows]
            for table in self.tables
            for kind, values in kinds.items()
        }
