"""Checkpoints that any number of ranks can load: tensors by torch.distributed.checkpoint, the rest as files beside.

Each table is saved by the rank that holds it, under its own name; so whoever holds it later finds it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from cedar.errors import CedarError
from cedar.trainers.dlrm.trainer import Trainer

STATE, VOCABULARIES = "state.json", "vocabularies"
_NAME = re.compile(r"step-(\d{8})")


class Checkpoints:
    """The checkpoints in a folder that all ranks see.

    A checkpoint is written aside and renamed when all ranks are done: what is there is whole.

    Args:
        folder: made where it is not there.
        trainer: whose they are.
        keep: how many; older ones are removed.
    """

    def __init__(self, folder: str, trainer: Trainer, *, keep: int = 2) -> None:
        self.folder, self.trainer, self.group, self.keep = folder, trainer, trainer.group, keep
        os.makedirs(folder, exist_ok=True)

    def save(self) -> str:
        """Save what the trainer holds now; the path of the checkpoint.

        Raises:
            CedarError: it cannot be written.
        """
        path = os.path.join(self.folder, f"step-{self.trainer.step:08d}")
        aside, first = path + ".part", self.group.rank == 0
        state = self._state()
        try:
            if first:
                shutil.rmtree(aside, ignore_errors=True)
                os.makedirs(aside)
            self._meet()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                save_tensors(
                    _tensors(self.trainer), checkpoint_id=aside, process_group=self.group.ranks,
                    no_dist=self.group.size == 1,
                )  # fmt: skip
            if first:
                self._finish(aside, path, state)
            self._meet()
        except OSError as error:
            raise CedarError(
                f"the checkpoint {path} cannot be written: {error}",
                done="older checkpoints are as they were",
                fix="look for space and rights there",
            ) from error
        return path

    def _finish(self, aside: str, path: str, state: dict[str, Any]) -> None:
        os.makedirs(os.path.join(aside, VOCABULARIES))
        for at, vocabulary in enumerate(self.trainer.batches.vocabularies):
            shutil.copyfile(vocabulary, os.path.join(aside, VOCABULARIES, f"{at}-{os.path.basename(vocabulary)}"))
        with open(os.path.join(aside, STATE), "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(path, ignore_errors=True)
        os.rename(aside, path)
        for name in self._names()[: -self.keep]:
            shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if _NAME.fullmatch(name))

    def latest(self) -> str | None:
        """The newest whole checkpoint, None where there is none."""
        found = self._names()
        return os.path.join(self.folder, found[-1]) if found else None

    def load(self, path: str) -> None:
        """Make the trainer what it was when it saved, on as many ranks or on others.

        Raises:
            CedarError: the checkpoint is of other tables, another model, seed or vocabulary, or it is damaged.
        """
        try:
            with open(os.path.join(path, STATE), encoding="utf-8") as file:
                state = json.load(file)
        except (OSError, json.JSONDecodeError) as error:
            raise CedarError(f"the checkpoint {path} cannot be read: {error}", fix="take an older one") from error
        trainer = self.trainer
        _compare(state, self._shape(), path)
        tensors = _tensors(trainer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_tensors(tensors, checkpoint_id=path, process_group=self.group.ranks, no_dist=self.group.size == 1)
        own = _tensors(trainer)
        with torch.no_grad():
            for name, value in tensors.items():
                if value is not own[name]:
                    own[name].copy_(value)
        trainer.step = state["step"]
        trainer.batches.load_state_dict(state["loader"])

    def _state(self) -> dict[str, Any]:
        """Everything but tensors: JSON."""
        own = self.trainer.batches.state_dict()
        states = [own]
        if self.group.size > 1:
            states = [{} for _ in range(self.group.size)]
            dist.all_gather_object(states, own, group=self.group.ranks)
        return {
            "step": self.trainer.step,
            "loader": states,
            **self._shape(),
        }

    def _shape(self) -> dict[str, Any]:
        """What must be alike for a checkpoint to be loaded."""
        options, trainer = self.trainer.options, self.trainer
        width = options.model.width
        digests = trainer.batches.vocabularies
        return {
            "seed": options.run.seed,
            "tables": {f.home: [f.rows, width] for f in options.features},
            "table state": {
                "dtype": options.tables.dtype,
                "rule": options.tables.rule,
                "compute": _kind(options.run.dtype),
            },
            "columns": [f.column for f in options.features],
            "model": {name: list(value.shape) for name, value in trainer.model.named_parameters()},
            "optimizer": options.optimizer.rule,
            "vocabularies": {
                f"{at}-{os.path.basename(path)}": digest for at, (path, digest) in enumerate(digests.items())
            },
        }

    def _meet(self) -> None:
        if self.group.size > 1:
            dist.barrier(self.group.ranks)


def _kind(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _tensors(trainer: Trainer) -> dict[str, Any]:
    """All tensors that this rank saves, by name: its tables; the rest, which all ranks hold alike."""
    found: dict[str, Any] = {f"table.{name}": value for name, value in trainer.tables.state().items()}
    for name, parameter in trainer.model.named_parameters():
        found[f"model.{name}"] = parameter.detach()
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(value):
                found[f"optimizer.{name}.{key}"] = value
    return found


def _compare(there: dict[str, Any], here: dict[str, Any], path: str) -> None:
    odd = []
    for what, own in here.items():
        saved = there.get(what)
        if isinstance(own, dict) and isinstance(saved, dict):
            names = [name for name in {**own, **saved} if own.get(name) != saved.get(name)]
            odd += [f"{what} {name}: {saved.get(name)} there, {own.get(name)} here" for name in names]
        elif saved != own:
            odd.append(f"{what}: {saved} there, {own} here")
    if odd:
        raise CedarError(
            f"{path} does not fit this configuration: {'; '.join(odd[:8])}",
            done="nothing was loaded",
            fix="give the configuration and vocabularies that it was saved with, or another folder",
        )
