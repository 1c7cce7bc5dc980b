"""The folder of a run: it holds one run's files, and says which trainer's they are."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from cedar.errors import CedarError
from cedar.trainers.common.sealed import replacing

CHECKPOINTS, METRICS, RUN = "checkpoints", "metrics.jsonl", "run.json"
_OURS = (CHECKPOINTS, "sparse", METRICS, RUN, "report.json")


def check_folder(folder: str, trainer: str, *, resume: bool) -> None:
    """Make the folder where it is not there, and refuse it where it holds another run's files.

    Args:
        folder: ``run.folder``.
        trainer: the name of the one that wants it.
        resume: the files that are there are of the run that goes on; they must be of the same trainer.

    Raises:
        CedarError: it cannot be made, or it is another run's.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        there = [name for name in _OURS if os.path.exists(os.path.join(folder, name))]
        there = [name for name in there if not os.path.isdir(path := os.path.join(folder, name)) or os.listdir(path)]
    except OSError as error:
        raise CedarError(
            f"run.folder is {folder!r}, which cannot be made: {error.strerror}",
            fix="set it to a folder for checkpoints and metrics",
        ) from error
    whose = ""
    with suppress(OSError, ValueError, RecursionError), open(os.path.join(folder, RUN), encoding="utf-8") as file:
        told = json.load(file)
        whose = str(told.get("trainer", "")) if isinstance(told, dict) else ""
    if there and whose not in ("", trainer):
        raise CedarError(
            f"{folder} holds a run of the trainer {whose!r}, and this one is {trainer!r}",
            done="nothing was changed there", fix="set run.folder to another folder",
        )  # fmt: skip
    if there and not resume:
        raise CedarError(
            f"{folder} holds the files of another run: {', '.join(there)}",
            done="nothing was changed there", fix="go on with --resume, or set run.folder to another folder",
        )  # fmt: skip


def claim_folder(folder: str, trainer: str) -> None:
    """Say that the folder is this trainer's."""
    with replacing(os.path.join(folder, RUN)) as file:
        file.write(json.dumps({"trainer": trainer}).encode() + b"\n")
