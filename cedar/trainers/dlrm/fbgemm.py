"""fbgemm: its table-batched embeddings, where the installed one loads with the installed torch.

Its wheels do not say which torch they were built for, and another one fails when it is loaded; so versions are compared
before.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cedar.errors import CedarError

# The pairs that were built for each other: minor version of torch, version of fbgemm.
PAIRS = {"2.11": "1.6.0", "2.12": "1.7.0", "2.13": "1.8.0", "2.14": "1.9.0"}
_PACKAGES = ("fbgemm-gpu-cpu", "fbgemm-gpu")
_HOME = "fbgemm_gpu.split_table_batched_embeddings_ops_training"


def pin(torch_version: str) -> str:
    """What to install beside a version of torch.

    Example:
        >>> pin("2.13.0+cpu")
        'pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0'
        >>> pin("2.5.1")
        'pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0'
    """
    number = torch_version.partition("+")[0]
    fits = PAIRS.get(_minor(number))
    return f"pip install torch=={number if fits else '2.13.0'} fbgemm-gpu-cpu=={fits or PAIRS['2.13']}"


def mismatch(torch_version: str, fbgemm_version: str | None) -> str | None:
    """Why fbgemm cannot be used, None where it can.

    Example:
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
def found() -> tuple[Any, str | None]:
    """(fbgemm's module of embeddings, None), or (None, why it cannot be used)."""
    import torch

    why = mismatch(torch.__version__, _installed())
    if why is not None:
        return None, why
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(_HOME), None
    except Exception as error:  # noqa: BLE001 - a library that was not built for this torch fails in many ways
        return None, f"fbgemm cannot be loaded: {error}"


def module() -> Any:
    """The module of embeddings of fbgemm.

    Raises:
        CedarError: it is not installed, or not the one for this torch; tells what to install.
    """
    import torch

    there, why = found()
    if there is None:
        raise CedarError(why or "", fix=f'{pin(torch.__version__)}; or set tables.backend = "torch"')
    return there


def _installed() -> str | None:
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def _minor(number: str) -> str:
    return ".".join(number.split(".")[:2])
