"""Converts to and from torch.distributed.checkpoint, whose ``.metadata`` is a pickle: read only files you trust."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import read_index, write_index
from cedar.trainers.common.files import sync_folder
from cedar.trainers.common.tensors import Part, Reader, write_parts

STATE = "state.json"


def export_dcp(checkpoint: str, folder: str) -> None:
    """Verify all hashes of a cedar checkpoint, and convert it to torch.distributed.checkpoint.

    Readers of ``folder`` unpickle its files, so they must trust everyone who can write there.

    Args:
        checkpoint: a folder ``step-...``.
        folder: output folder, with all tensors, unsharded, by name, and the trainer's state as ``state.json``.

    Raises:
        CedarError: the checkpoint is damaged.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    index = read_index(checkpoint)
    with Reader(checkpoint, index.entries) as reader:
        reader.verify_all()
        values = {name: torch.zeros(entry.shape, dtype=entry.dtype) for name, entry in index.entries.items()}
        reader.read({name: Part(value) for name, value in values.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is only one process
        save(values, checkpoint_id=folder, no_dist=True)
    with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:
        json.dump(index.state, file)


def import_dcp(folder: str, checkpoint: str, *, trust: bool = False) -> None:
    """Convert a torch.distributed.checkpoint, such as one that an earlier cedar version wrote, to a cedar checkpoint.

    Reading it unpickles ``.metadata``, which may run arbitrary code that the file contains.

    Args:
        folder: the torch.distributed.checkpoint; ``state.json`` in it, if present, becomes the trainer's state.
        checkpoint: output folder ``step-...`` in the checkpoints folder of a run.
        trust: must be True, to confirm that only you can write to ``folder``.

    Raises:
        CedarError: ``trust`` is not True, ``checkpoint`` already exists, or ``folder`` cannot be read.
    """
    if trust is not True:
        raise CedarError(
            f"reading {folder} unpickles a file, which may run code", done="nothing was read",
            fix="if no other user can write there, call import_dcp(..., trust=True)",
        )  # fmt: skip
    aside = f"{checkpoint}.part"
    for path in (checkpoint, aside):
        if os.path.exists(path):
            raise CedarError(f"{path} already exists", fix="give another name, or remove it")
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    planner: Any = _EmptyStateDictLoadPlanner  # torch does not type this class
    values: dict[str, Any] = {}
    state: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load_state_dict(values, storage_reader=FileSystemReader(folder), planner=planner(), no_dist=True)
        if os.path.exists(os.path.join(folder, STATE)):
            with open(os.path.join(folder, STATE), encoding="utf-8") as file:
                state = json.load(file)
    except (OSError, ValueError, KeyError) as error:
        raise CedarError(f"{folder} is not a checkpoint that torch reads: {error}", fix="check its files") from error
    os.makedirs(aside)
    tensors = {name: Part(value) for name, value in values.items() if torch.is_tensor(value)}
    write_index(aside, state, write_parts(aside, "rank-0.safetensors", tensors))
    os.rename(aside, checkpoint)
    sync_folder(os.path.dirname(checkpoint) or ".")
