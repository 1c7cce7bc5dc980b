"""Inject failures on purpose: ``kill=2@step40, hang=1@step60, loop=0@step70:5, slow=3@step10, rejoin@step80``."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from cedar.core.errors import CedarError

Kind: TypeAlias = Literal["kill", "hang", "loop", "slow", "rejoin"]
_FAULT_PATTERN = re.compile(r"(kill|hang|loop|slow)=(\d+)@step(\d+)(?::(\d+))?|(rejoin)@step(\d+)")
_LETHAL = frozenset({"kill", "hang", "loop"})


@dataclass(frozen=True)
class InjectedFault:
    """A failure to inject into a run."""

    # ``kill``: SIGKILL; ``hang``: SIGSTOP; ``loop``: an endless loop; ``slow``: each instruction takes three times as
    # long from this step on; ``rejoin``: new workers replace the dead ones
    kind: Kind
    worker: int  # the worker's index in the grid, stage * replicas + replica; -1 for ``rejoin``
    step: int
    at: int = 0  # position in the worker's instruction list


def parse(text: str, workers: int, steps: int) -> tuple[InjectedFault, ...]:
    """Parse the value of ``--chaos``, for a run with the given numbers of workers and steps.

    Examples:
        >>> parse("kill=2@step40:7, rejoin@step80", workers=4, steps=100)[0]
        InjectedFault(kind='kill', worker=2, step=40, at=7)
    """
    faults = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _FAULT_PATTERN.fullmatch(entry)
        if match is None:
            raise CedarError(
                f"--chaos: {entry!r} is unknown", fix="write kill=W@stepN, hang=, loop=, slow=, or rejoin@stepN"
            )
        kind, worker, step, at, rejoin, when = match.groups()
        if int(when or step) >= steps:
            raise CedarError(f"--chaos: {entry!r}: steps are 0 to {steps - 1}", fix="see run.steps")
        if rejoin:
            faults.append(InjectedFault("rejoin", -1, int(when)))
            continue
        if int(worker) >= workers:
            raise CedarError(f"--chaos: {entry!r}: workers are 0 to {workers - 1}", fix="see --stages and --replicas")
        faults.append(InjectedFault(cast("Kind", kind), int(worker), int(step), int(at or 0)))
    return tuple(faults)


class ScheduledFaults:
    """The failures to inject into one worker process. ``life``: how many earlier processes ran this worker; each new
    process gets the worker's next lethal failure.
    """

    def __init__(self, faults: Sequence[InjectedFault], worker: int, life: int) -> None:
        own = [fault for fault in faults if fault.worker == worker]
        lethal = [fault for fault in own if fault.kind in _LETHAL]
        self.end = lethal[life] if life < len(lethal) else None
        self.slow = next((fault for fault in own if fault.kind == "slow"), None)
        self._since = 0.0

    def due(self, step: int, at: int) -> InjectedFault | None:
        """Return the lethal failure to inject before this instruction, or None."""
        end = self.end
        if end is not None and at >= 0 and (step, at) >= (end.step, end.at):
            return end
        return None

    def pause(self, step: int, *, waits: bool = False) -> None:
        """For ``slow``, sleep twice the time since the last call. ``waits``: the next instruction only waits."""
        if self.slow is not None and step >= self.slow.step and self._since:
            time.sleep(2 * (time.perf_counter() - self._since))
        self._since = 0.0 if waits else time.perf_counter()


def inject(fault: InjectedFault) -> None:
    """Inject a lethal failure into this process."""
    if fault.kind == "loop":
        while True:
            pass
    os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
