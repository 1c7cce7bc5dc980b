"""Tampered checkpoints of all three trainers: each is refused by name, or loads what was saved.

    python -m benchmarks.tampered_checkpoints [cases] [--quick]

Bytes are flipped, cut, swapped and overwritten; files are missing, empty, links, pipes, directories and pickles that
would write a file; headers of tensor files are forged; and indexes are forged with their digests computed again, as
only something can who may write there: what these say is loaded if it is possible, and no checkpoint is safe from that.
Of all of them: no exception but CedarError, no code run, no case beyond some seconds, nothing half loaded.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.checkpoint import INDEX, Checkpoints
from cedar.trainers.common.files import read_sealed, write_sealed

CASES, QUICK = 20_000, 600
LIMIT = 5.0  # seconds that a case may take
_NASTY: list[Any] = [
    None, True, -1, 0, 3, 2**31, 2**63, 10**30, -0.5, 1e308, "", "x", "\x00", "../../etc/passwd", "/dev/zero",
    "a" * 70_000, [], {}, [[]], [None], {"x": None}, [2**61, 2**61], "rank-0.safetensors", "float64", "0" * 64,
]  # fmt: skip


@dataclass
class Target:
    """A trainer, and the checkpoint that it saved.

    Args:
        name: of the trainer.
        path: of the checkpoint.
        load: takes the checkpoint at a path.
        state: a digest of all that a checkpoint may change.
        close: lets go.
    """

    name: str
    path: str
    load: Callable[[str], Any]
    state: Callable[[], str]
    close: Callable[[], None]


class Canary:
    """Unpickled, it writes a file."""

    path = ""

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def dlrm(folder: Path) -> Target:
    """A small click model."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cedar.trainers.dlrm.options import DataOptions, FeatureOptions, ModelOptions, Options, RunOptions, TableOptions
    from cedar.trainers.dlrm.trainer import Trainer

    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = {"item": rng.integers(0, 9, 64), "d0": rng.random(64), "label": rng.integers(0, 2, 64)}
    pq.write_table(pa.table(rows), folder / "log.parquet")
    data = DataOptions(str(folder / "log.parquet"), dense=("d0",), batch=16, dedup="off", executor="inline", plan="off")
    options = Options(
        data, (FeatureOptions("item", 9),), ModelOptions(width=4, bottom=(4,), top=(4,)), TableOptions(backend="torch"),
        run=RunOptions(device="cpu"),
    )  # fmt: skip
    trainer = Trainer(options)
    trainer.train_step()
    files = Checkpoints(str(folder / "checkpoints"), trainer)
    return Target("dlrm", files.save(), files.load, lambda: _digest(trainer), trainer.close)


def moe(folder: Path) -> Target:
    """A small mixture of experts."""
    from cedar.trainers.moe.options import DataOptions, ExpertOptions, ModelOptions, Options, RunOptions
    from cedar.trainers.moe.trainer import Trainer

    folder.mkdir()
    (folder / "text.txt").write_text("all the world's a stage, and all the men and women merely players\n" * 20)
    options = Options(
        DataOptions(str(folder / "text.txt"), length=8, batch=4, held_out=0), ModelOptions(1, 8, 2),
        ExpertOptions(experts=3, slots=4, hidden=4), run=RunOptions(dtype="float32", device="cpu"),
    )  # fmt: skip
    trainer = Trainer(options)
    trainer.train_step()
    files = Checkpoints(str(folder / "checkpoints"), trainer)
    return Target("moe", files.save(), files.load, lambda: _digest(trainer), trainer.close)


def resilient(folder: Path) -> Target:
    """Both stages of a small pipeline."""
    from cedar.trainers.common.checkpoint import newest
    from cedar.trainers.resilient.checkpoint import Checkpoints as Parts
    from cedar.trainers.resilient.control.board import Board, Epoch
    from cedar.trainers.resilient.control.store import Values
    from cedar.trainers.resilient.model import Engine, Stage, State, Transformer, token_loss
    from cedar.trainers.resilient.schedule import Worker

    folder.mkdir()
    model, board = Transformer(vocabulary=17, length=5, layers=2, width=8, heads=2), Board(Values())
    workers = (Worker(0, 0), Worker(1, 0))
    engines = [
        Engine(Stage(model, worker.stage, 2), worker.stage, 2, token_loss, tied={"tokens.weight": "tokens.weight"})
        for worker in workers
    ]
    about = {"loader": {"seed": 1, "pipeline": "p", "sources": ["s"]}}
    parts = [
        Parts(str(folder / "run"), worker, engine.layout, board, about=about, shared_elsewhere=worker.stage > 0)
        for worker, engine in zip(workers, engines, strict=True)
    ]
    for part, engine in zip(parts, engines, strict=True):
        part.save(State(3, 3, *(getattr(engine.initial_state, kind) + 1 for kind in _KINDS)), Epoch(1, workers))
        part.wait()
    held: list[State] = [engine.initial_state for engine in engines]

    def load(path: str) -> None:
        held[:] = [part.load(path) for part in parts]

    def state() -> str:
        return repr([(one.version, one.updates, *(getattr(one, kind).tolist() for kind in _KINDS)) for one in held])

    return Target("resilient", newest(str(folder / "run")), load, state, lambda: None)


_KINDS = ("master", "first", "second")


def _digest(trainer: Any) -> str:
    state = {name: value for name, value in trainer.state_dict().items() if name != "settings"}
    return repr([state, {name: part.tensor.tolist() for name, part in trainer.parts().items()}])


def tamper(path: str, rng: random.Random, canary: str) -> str:
    """Damage the checkpoint in some way; what was done, which begins with "forged" where digests were rebuilt."""
    files = sorted(name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name)))
    name = rng.choice(files)
    file = Path(path, name)
    data = bytearray(file.read_bytes())
    kind = rng.choice(["bits", "bits", "cut", "more", "zeros", "copy", "file", "header", "index", "index", "former"])
    if kind == "bits":
        for _ in range(rng.choice([1, 1, 2, 9])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "more":
        at = rng.randint(0, len(data))
        data[at:at] = rng.randbytes(rng.randint(1, 40))
    elif kind == "zeros":
        at = rng.randrange(len(data))
        data[at : at + rng.randint(1, 64)] = bytes(min(64, len(data) - at))
    elif kind == "copy":
        at, source = rng.randrange(len(data)), rng.randrange(len(data))
        data[at : at + 32] = data[source : source + 32]
    elif kind == "file":
        return f"{name} {_replace(file, files, rng, canary)}"
    elif kind == "header":
        return _forge_header(Path(path), files, rng)
    elif kind == "index":
        return _forge_index(path, rng)
    else:
        os.unlink(os.path.join(path, INDEX))
        Path(path, ".metadata").write_bytes(_pickled(canary))
        Path(path, "state.json").write_text("{}")
        return "former format"
    file.write_bytes(data)
    return f"{kind} of {name}"


def _pickled(canary: str) -> bytes:
    Canary.path = canary
    return pickle.dumps(Canary())


def _replace(file: Path, files: list[str], rng: random.Random, canary: str) -> str:
    what = rng.choice(["is gone", "is a directory", "is a pipe", "is a link", "is a pickle", "is another", "is empty"])
    other = file.with_name(rng.choice(files)).read_bytes()
    file.unlink()
    if what == "is a directory":
        file.mkdir()
    elif what == "is a pipe":
        os.mkfifo(file)
    elif what == "is a link":
        file.symlink_to(rng.choice(["/dev/zero", "/etc/passwd", file.name, "/nowhere"]))
    elif what != "is gone":
        file.write_bytes({"is a pickle": _pickled(canary), "is another": other}.get(what, b""))
    return what


def _forge_header(path: Path, files: list[str], rng: random.Random) -> str:
    """Change the JSON at the head of a file of tensors."""
    name = rng.choice([name for name in files if name.endswith(".safetensors")])
    data = (path / name).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    _change(header, rng)
    text = json.dumps(header).encode()
    length = len(text) if rng.random() < 0.9 else rng.choice([0, 1, 2**40, 2**63])
    (path / name).write_bytes(struct.pack("<Q", length) + text + data[8 + size :])
    return f"header of {name}"


def _forge_index(path: str, rng: random.Random) -> str:
    found = copy.deepcopy(read_sealed(os.path.join(path, INDEX)))
    for _ in range(rng.choice([1, 1, 1, 3])):
        _change(found, rng)
    write_sealed(os.path.join(path, INDEX), found)
    return "forged index"


def _change(root: Any, rng: random.Random) -> None:
    """Put something else in a random place of a value of JSON."""
    at = root
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.85:
            at = at[key]
            continue
        break
    what = rng.randrange(4)
    if what == 0:
        del at[key]
    elif what == 1 and isinstance(at, list):
        at.append(at[key])
    elif what == 2 and isinstance(at[key], int):
        at[key] += rng.choice([-1, 1, 2**20])
    else:
        at[key] = copy.deepcopy(rng.choice(_NASTY))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A case that takes longer ends in a TimeoutError."""

    def late(*_: object) -> None:
        raise TimeoutError(f"beyond {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attack(target: Target, cases: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """How many were refused, harmless or forged so that they say something else; and what should not have been."""
    rng, found, wrong = random.Random(seed), Counter[str](), []
    canary, copied = str(folder / "canary"), str(folder / os.path.basename(target.path))
    target.load(target.path)
    good = target.state()
    for case in range(cases):
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(target.path, copied)
        what = tamper(copied, rng, canary)
        try:
            with limited(LIMIT):
                target.load(copied)
        except CedarError as error:
            verdict = "refused" if os.path.basename(copied) in str(error) or "forged" in what else f"unnamed: {error}"
            if target.state() != good and "forged" not in what:
                verdict = "half loaded"
        except BaseException:  # noqa: BLE001 - what this looks for
            verdict = traceback.format_exc(limit=-3)
        else:
            verdict = "harmless" if target.state() == good else "says something else"
        if os.path.exists(canary):
            verdict = "code was run"
            os.rmdir(canary)
        expected = {"refused", "harmless", "says something else"} if "forged" in what else {"refused", "harmless"}
        if verdict not in expected:
            wrong.append(f"{target.name}, seed {seed}, case {case}, {what}: {verdict}")
        found[verdict if verdict in expected else "wrong"] += 1
        if verdict != "harmless" and "forged" in what:
            target.load(target.path)
    return found, wrong


MAKERS = (dlrm, moe, resilient)


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--quick"]
    cases = int(arguments[0]) if arguments else QUICK if "--quick" in sys.argv else CASES
    torch.set_num_threads(1)
    bad = 0
    for make in MAKERS:
        with tempfile.TemporaryDirectory() as name:
            target = make(Path(name) / "run")
            began = time.perf_counter()
            found, wrong = attack(target, cases // len(MAKERS), 0, Path(name))
            target.close()
        bad += len(wrong)
        told = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(found.items()))
        print(f"{target.name}: {told}, in {time.perf_counter() - began:.0f} s", flush=True)
        for line in wrong[:5]:
            print(line)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
