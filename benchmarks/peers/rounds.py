"""Rounds: every contestant once in each, in turns, each in a process of its own with a limit of time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import ROOT
from benchmarks.peers import watch
from benchmarks.peers.child import Answer, Order
from benchmarks.peers.entry import Entry
from benchmarks.peers.environments import plain_variables

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
TAIL = 2000  # characters of a failed run's output that are kept


@dataclass(frozen=True)
class Contestant:
    """An entry in one of its settings, with the interpreter that it runs under."""

    name: str  # of the entry's module
    entry: Entry
    setting: str
    python: str


@dataclass(frozen=True)
class Job:
    """A workload on its input, as ordered of every contestant."""

    workload: str
    folder: str
    rows: int
    epochs: int
    seconds: float  # a run's limit


@dataclass(frozen=True)
class Run:
    """What a run gave: the child's answer, the peaks of memory in MB, and where its sampled rows are."""

    workload: str
    entry: str
    setting: str
    round: int
    answer: Answer
    resident: float
    proportional: float
    samples: str | None

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.answer.rows / self.answer.wall if self.answer.wall else 0.0

    @property
    def cpu_rate(self) -> float:
        """Rows per CPU second."""
        return self.answer.rows / self.answer.cpu if self.answer.cpu else 0.0


def rounds(
    job: Job, contestants: Sequence[Contestant], number: int, scratch: Path, say: Callable[[str], None]
) -> Iterator[Run]:
    """All runs; who begins moves on by one from round to round. Who failed in the first round is not retried."""
    failed: set[int] = set()
    for turn in range(number):
        start = turn % max(1, len(contestants))
        for place in [*range(start, len(contestants)), *range(start)]:
            if place in failed:
                continue
            found = run(job, contestants[place], turn, scratch)
            if found.answer.problem:
                failed.add(place)
            outcome = found.answer.problem or f"{found.rate:,.0f}/s, {found.cpu_rate:,.0f} per CPU second"
            say(f"{job.workload} round {turn + 1}: {found.entry} ({found.setting}): {outcome}")
            yield found


def run(job: Job, contestant: Contestant, turn: int, scratch: Path) -> Run:
    """One run, ended with everything that it started when it is done or its time is up."""
    mark = uuid.uuid4().hex
    place = scratch / mark
    place.mkdir(parents=True)
    answer_path, samples = place / "answer.json", place / "samples.npz"
    kept = None if contestant.entry.limit else str(samples)
    env = variables(contestant.entry, mark, place)
    order_path = place / "order.json"
    command = [contestant.python, "-m", "benchmarks.peers.child", str(order_path)]
    with (place / "output.txt").open("wb") as output, watch.Memory(mark) as memory:
        order = Order(
            job.workload, contestant.name, contestant.setting, job.folder, job.rows, job.epochs, str(answer_path), kept,
            time.monotonic(),
        )  # fmt: skip
        order_path.write_text(json.dumps(asdict(order)), encoding="utf-8")
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            process.wait(job.seconds)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            watch.end(mark)
            if process.poll() is None:
                process.kill()
            process.wait(10)
    answer = _answer(answer_path, place / "output.txt", late, job.seconds)
    return Run(
        job.workload, contestant.entry.name, contestant.setting, turn, answer, memory.resident, memory.proportional,
        str(samples) if samples.exists() else None,
    )  # fmt: skip


def variables(entry: Entry, mark: str, place: Path) -> dict[str, str]:
    """The environment variables of a run.

    Libraries of peers have one thread each, as guides to loaders advise: two threads of BLAS on two busy cores cost
    ten times the work. Ours is told nothing.
    """
    own = {"PYTHONPATH": str(ROOT), watch.VARIABLE: mark, "HF_HOME": str(place / "hf"), "PYTHONUNBUFFERED": "1"}
    return plain_variables() | own | (ONE_THREAD if entry.environment else {}) | dict(entry.variables)


def _answer(path: Path, output: Path, late: bool, seconds: float) -> Answer:
    if path.exists():
        answer = Answer(**json.loads(path.read_text(encoding="utf-8")))
    elif late:
        answer = Answer(problem=f"took longer than {seconds:g} s")
    else:
        answer = Answer(problem="its process ended without an answer")
    if answer.problem:
        print(output.read_text(encoding="utf-8", errors="replace")[-TAIL:], file=sys.stderr)
    return answer
