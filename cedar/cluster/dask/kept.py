"""``cache()`` on a service: the cached blocks of a split stay in the workers' memory, for all jobs that need them.

A separate Dask task computes the blocks. Its key identifies the computation and the data, so Dask runs it once for all
jobs. The tasks that do the rest of each job's work depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cedar.cluster.dask.remote import Done, Parcel, RemoteCall, run
from cedar.core.block import Block
from cedar.executors.worker.main import TaskFailed
from cedar.operators.base import Env
from cedar.plan import graph
from cedar.store.blocks import relabeled
from cedar.store.cache import kind_of
from cedar.tasks.cached import KeptReader
from cedar.tasks.chain import KernelStep, Result, Timing, own_copy
from cedar.tasks.code import Code
from cedar.tasks.reading import Reader, SplitReader, read_split

_MAX_CODE_BYTES = 1 << 18  # splits are only shared if the code, which is sent with each of them, is smaller
KEPT = "cedar-kept-"  # prefix of the keys of shared results


class SharedFailed(Exception):
    """Computing a shared result failed. The answer is raised, so that Dask does not keep it as a result."""

    def __init__(self, parcel: Parcel) -> None:
        super().__init__("a shared result could not be computed")
        self.parcel = parcel

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFailed, (self.parcel,)


@dataclass(frozen=True)
class SharedResult:
    """A result that jobs share: its key, and the parcel of the call that computes it."""

    key: str
    call: Parcel


def shared(reader: SplitReader, split: Any, env: Env, code: Code) -> SharedResult | None:
    """Return the part of a reading task that other jobs can share; None if there is no such part.

    Args:
        reader: the task's reader; other jobs can only share the work of a reader that caches in memory.
        env: the task's environment; audits do not use shared results.
        code: code of the inner reader and of the program whose output is cached.
    """
    if not isinstance(reader, KeptReader) or kind_of(reader.where) != "memory" or env.watch == "audit":
        return None
    identity = reader.plain.source.identity()
    if identity is None or code.pickled is None or len(code.pickled) > _MAX_CODE_BYTES:
        return None
    policy = reader.plain.on_error
    steps = (*reader.steps, *(reader.program.written or ()))
    ordinals = sorted({o for step in steps for o in step.operators}) if policy is not None else []
    parts = [
        reader.record.key(), list(reader.record.columns or ()), reader.record.several and reader.plain.ordinal,
        identity, repr(policy), ordinals, list(reader.branches), repr(split), str(env.numeric),
    ]  # fmt: skip
    call = RemoteCall(_compute_blocks, (code.key, code.pickled, code.path, split, env.numeric), {}, None)
    return SharedResult(KEPT + graph.digest(parts), Parcel.of(call))


def _compute_blocks(key: str, pickled: bytes, path: tuple[str, ...], split: Any, numeric: Any) -> list[Block]:
    reader, program = Code(key, pickled, path).load()
    return read_split(program, reader, split, 0, Env(numeric=numeric)).blocks


def run_shared(theirs: str, call: Parcel) -> Parcel:
    """Compute a shared result.

    Raises:
        SharedFailed: the computation failed.
    """
    answer = run(theirs, call)
    if isinstance(answer.open(), TaskFailed):
        raise SharedFailed(answer)
    return answer


def run_on_shared(theirs: str, call: Parcel, shared_result: Parcel) -> Parcel:
    """Run the rest of a task on a shared result."""
    done: Done = shared_result.open()
    return run(theirs, call, done.value)


def read_shared(blocks: list[Block], code: Code, env: Env, split: Any, lap: int, first: int) -> Result:
    """Run a task's program on shared blocks, without changing them."""
    program, reader = code.load()
    return read_split(program, _BlockReader(blocks, reader.plain), split, lap, code.env(env), first)


@dataclass(frozen=True)
class _BlockReader:
    """A reader that returns existing blocks."""

    existing: list[Block]
    plain: Reader
    steps: ClassVar[tuple[KernelStep, ...]] = ()
    caches: ClassVar[bool] = False

    @property
    def as_written(self) -> _BlockReader:
        return self

    def read_blocks(self, split: Any, lap: int, env: Env, timing: Timing) -> Iterator[Block]:
        for block in relabeled(self.existing, self.plain.ordinal, lap):
            yield own_copy(block)
