"""Profile: figures per operator of one pipeline, on one machine."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from cedar.core.errors import PlanError, user_site
from cedar.core.printable import escape, printable
from cedar.profile import saved, text
from cedar.profile.figures import Machine, OperatorProfile, Subject, refreshed

_NEAR = 1.5  # speeds and memories of one machine differ by less, from day to day


class ProfiledPipeline(Protocol):
    """A pipeline, as far as profiles are concerned."""

    @property
    def subject(self) -> Subject: ...


@dataclass(frozen=True)
class Profile:
    """Figures per operator, by its ordinal in the pipeline as written.

    Args:
        pipeline: stands for the pipeline's operators and parameters.
        operators: ordinal to figures; the sources are there too.
        machine: where it was measured.
        rows: rows read from sources.
        seconds: wall time of the measurement.
        workers: tasks at once.
        executor: where it ran.
        own: CPU seconds per row read of the loader's thread: it cuts batches, and hands them over.
        around: CPU seconds per row read of workers around operators: they gather rows, and convert batches.

    Examples:
        >>> cedar.from_items([{"x": i} for i in range(4)]).profile(seconds=0.1).rows
        4
    """

    pipeline: str
    operators: dict[int, OperatorProfile]
    machine: Machine
    rows: int = 0
    seconds: float = 0.0
    workers: int = 1
    executor: str = "threads"
    own: float = 0.0
    around: float = 0.0

    # ---- to read -----------------------------------------------------------------------------------------------------

    @property
    def shares(self) -> dict[int, float]:
        """Each operator's share of the wall time that all of them took, 0 to 1."""
        total = sum(figures.seconds for figures in self.operators.values())
        return {i: figures.seconds / total if total else 0.0 for i, figures in self.operators.items()}

    @property
    def bottleneck(self) -> str:
        """The label of the operator that takes most of the time; "nothing was measured" without any."""
        shares = self.shares
        costliest = max(shares, key=lambda i: shares[i], default=None)
        return (
            self.operators[costliest].label if costliest is not None and shares[costliest] else "nothing was measured"
        )

    @property
    def gil(self) -> float:
        """The share of the operators' time in which the GIL is held, as far as it was measured, 0 to 1."""
        shares = self.shares
        return sum(share * (self.operators[i].gil or 0.0) for i, share in shares.items())

    def table(self) -> str:
        """The figures as text of at most 100 columns, sources first.

        Examples:
            >>> figures = OperatorProfile("map(decode)", 8, 1000, wall=2e-4, cpu=2e-4, gil=1.0)
            >>> profile = Profile("", {0: figures}, Machine(cores=2, memory=2**30), rows=1000, seconds=0.25)
            >>> print(profile.table())
            operator     us/row wall  us/row cpu  keep  bytes/row    GIL   share
            map(decode)          200         200  1     0 B -> 0 B  100%  100.0%
            1,000 rows in 0.25 s, threads, 1 worker(s), 2 core(s); bottleneck: map(decode)
            the GIL is held 100% of the time: threads give at most 1.0x
        """
        lines = text.aligned(self.cells())
        where = f"{self.executor}, {self.workers} worker(s), {self.machine.cores} core(s)"
        reported = f"{self.rows:,} rows in {self.seconds:.2f} s, {where}; bottleneck: {self.bottleneck}"
        lines.append(printable(text.cut(reported, text.WIDTH)))
        if self.gil > 0.5:
            lines.append(f"the GIL is held {self.gil:.0%} of the time: threads give at most {1 / self.gil:.1f}x")
        return "\n".join(lines)

    def cells(self) -> list[tuple[str, ...]]:
        """The cells of the table, its header first."""
        shares = self.shares
        return [text.HEAD, *(text.cells(self.operators[i], shares[i]) for i in sorted(self.operators))]

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.table())}</pre>"

    # ---- to compare --------------------------------------------------------------------------------------------------

    def differences(self, machine: Machine) -> list[str]:
        """How ``machine`` differs from the one that was measured, as far as figures depend on it."""
        mine, phrases = self.machine, []
        if mine.cores != machine.cores:
            phrases.append(f"{mine.cores} core(s) there, {machine.cores} here")
        if not _near(mine.memory, machine.memory):
            phrases.append(f"{text.byte_size(mine.memory)} of memory there, {text.byte_size(machine.memory)} here")
        if mine.speed and machine.speed and not _near(mine.speed, machine.speed):
            phrases.append(f"a core is {machine.speed / mine.speed:.1f}x as fast here")
        return phrases

    def fits(self, machine: Machine) -> bool:
        """Whether figures measured there hold on ``machine``."""
        return not self.differences(machine)

    def check(self, pipeline: Subject | ProfiledPipeline) -> None:
        """Raises PlanError where this is the profile of another pipeline, and says what differs."""
        subject = pipeline if isinstance(pipeline, Subject) else pipeline.subject
        if subject.digest != self.pipeline:
            raise PlanError(
                f"the profile is of another pipeline: {self._unlike(subject)}",
                site=user_site(),
                fix="profile this pipeline: p.profile()",
            )

    def _unlike(self, subject: Subject) -> str:
        """The first operator that is another one."""
        for i, figures in sorted(self.operators.items()):
            if i not in subject.labels:
                return f"it has an operator {i}, {figures.label}, which is not there"
            if subject.labels[i] != figures.label:
                return f"operator {i} is {figures.label} there and {subject.labels[i]} here"
        return "operators were added or connected in another way, or have other parameters"

    def merge(self, newer: Profile) -> Profile:
        """These figures refreshed by those of a later run of the same pipeline.

        Rows count, and newer ones twice; however many older ones there are, the newer figures count for a third at
        least. Seconds of another machine do not count. Where several tasks ran at once, waiting for a core or the GIL
        is part of the wall time, so of two times of waiting the shorter one is kept.

        Raises:
            PlanError: it is of another pipeline.
        """
        newer.check(Subject(self.pipeline, {i: figures.label for i, figures in self.operators.items()}))
        timed = self.fits(newer.machine)
        crowded = newer.workers > max(self.workers, 1)
        merged = dict(self.operators)
        for i, figures in newer.operators.items():
            older = self.operators.get(i)
            if figures.rows:
                merged[i] = figures if older is None or not older.rows else refreshed(older, figures, timed, crowded)
            else:
                merged.setdefault(i, figures)
        return replace(newer, operators=merged)

    # ---- to keep -----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON that diffs well; the file is replaced as a whole.

        Raises:
            PlanError: the file cannot be written.
        """
        name = os.fspath(path)
        body = {key: value for key, value in asdict(self).items() if key != "operators"}
        try:
            saved.write(name, body, self.operators)
        except OSError as error:
            raise PlanError(f"{name}: the profile cannot be written: {error}", site=user_site()) from error

    @staticmethod
    def load(path: str | os.PathLike[str], pipeline: Subject | ProfiledPipeline | None = None) -> Profile:
        """A saved profile; ``fits`` tells whether its machine is like this one.

        Args:
            path: what ``save`` wrote.
            pipeline: refuse a profile that is not of this pipeline.

        Raises:
            PlanError: the file cannot be read, is not a profile, of another version, or of another pipeline.
        """
        name = os.fspath(path)
        try:
            profile: Profile = saved.checked(Profile, saved.read(name), "the profile")
        except OSError as error:
            raise PlanError(f"{name}: the profile cannot be read: {error}", site=user_site()) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise PlanError(
                f"{name} is not a profile that this version reads: {error}",
                site=user_site(),
                fix="make it again: p.profile().save(path)",
            ) from error
        if pipeline is not None:
            profile.check(pipeline)
        return profile


def _near(a: float, b: float) -> bool:
    return a <= b * _NEAR and b <= a * _NEAR
