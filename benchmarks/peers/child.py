"""One run: an entry, a workload, a setting, in its own process; the answer is a file of JSON.

``python -m benchmarks.peers.child order.json``. The order says what to run and where to write the answer and the
sampled rows. The first epoch warms up (its start is the figure "first batch"), the others are the rate.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.entry import entry as entry_named
from benchmarks.peers.watch import VARIABLE, cpu_seconds
from benchmarks.peers.workload import Work
from benchmarks.peers.workload import workload as workload_named

KEPT = 48  # rows that are compared, of an epoch


@dataclass(frozen=True)
class Order:
    """What to run."""

    workload: str
    entry: str
    setting: str
    folder: str
    rows: int
    epochs: int
    answer: str
    samples: str | None
    started: float  # time.monotonic() of the parent when it started this process


@dataclass
class Answer:
    """What came of it. Seconds, rows; ``problem`` says what went wrong."""

    rows: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    first_epoch_rows: int = 0
    first_epoch_wall: float = 0.0
    first_from_iter: float = 0.0
    first_from_start: float = 0.0
    epochs: list[float] = field(default_factory=list)
    problem: str = ""


def main() -> None:
    """Run what the file named on the command line orders."""
    order = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    try:
        answer = run(order)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the table tells it
        traceback.print_exc()
        last = traceback.extract_tb(error.__traceback__)[-1]
        answer = Answer(problem=f"{describe(error)} ({Path(last.filename).name}:{last.lineno})")
    partial = Path(order.answer + ".part")
    partial.write_text(json.dumps(asdict(answer)), encoding="utf-8")
    partial.rename(order.answer)
    sys.stdout.flush()
    os._exit(0)  # the parent ends the rest of workers; how long they take to say farewell is not measured


def describe(error: BaseException) -> str:
    """An error in a line: of many lines (another process's traceback) the last says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300] if lines else ''}"


def run(order: Order) -> Answer:
    """The epochs, timed."""
    entry, workload = entry_named(order.entry), workload_named(order.workload)
    work = workload.work(order.folder, order.rows)
    answer = Answer()
    seen = Seen(work)
    batches = entry.run(workload, work, order.setting)
    mark = os.environ.get(VARIABLE, "")
    for number in range(order.epochs):
        seen.begin()
        first = 0.0
        cpu, start = cpu_seconds(mark), time.perf_counter()
        for batch in batches:
            if not first:
                first = time.perf_counter() - start
                if number == 0:
                    answer.first_from_iter, answer.first_from_start = first, time.monotonic() - order.started
            seen.add(batch, keep=number == 0 and order.samples is not None)
        wall = time.perf_counter() - start
        answer.epochs.append(wall)
        if number == 0:
            answer.first_epoch_rows, answer.first_epoch_wall = seen.rows, wall
        if number or order.epochs == 1:
            answer.rows, answer.wall = answer.rows + seen.rows, answer.wall + wall
            answer.cpu += cpu_seconds(mark) - cpu
    if order.samples is not None:
        seen.write(order.samples)
    return answer


class Seen:
    """What an epoch delivered: how many rows, which ones, and some of them in full."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.samples: dict[int, dict[str, Any]] = {}
        self.ids: list[Any] = []
        self.first_ids: list[Any] | None = None
        self.rows = 0

    def begin(self) -> None:
        if self.first_ids is None and self.ids:
            self.first_ids = self.ids
        self.ids, self.rows = [], 0

    def add(self, batch: Any, *, keep: bool) -> None:
        if isinstance(batch, int):  # a limit counts, and delivers nothing
            self.rows += batch
            return
        ids = np.array(self.work.ids(batch, self.rows), dtype=np.int64)
        if keep and len(self.samples) < KEPT:
            for at in {0, len(ids) // 2, len(ids) - 1} if len(ids) else ():
                self.samples[int(ids[at])] = self.work.sample(batch, at)
        self.ids.append(ids)
        self.rows += len(ids)

    def write(self, path: str) -> None:
        """An .npz of the ids of the first and the last epoch, and of the rows that were kept."""
        last = self.ids or [np.zeros(0, np.int64)]
        first = self.first_ids or last
        arrays = {"ids.first": np.concatenate(first), "ids.last": np.concatenate(last)}
        for row, columns in self.samples.items():
            arrays |= {f"row.{row}.{name}": value for name, value in columns.items()}
        np.savez(path, **arrays)  # type: ignore[arg-type]  # a name could be that of an option; ours hold a dot


if __name__ == "__main__":
    main()
