"""Profile: the measurements of each operator of one pipeline on one machine."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from cedar.core.errors import PlanError, user_site
from cedar.core.printable import escape, printable
from cedar.profile import saved, text
from cedar.profile.figures import Machine, OperatorProfile, Subject, combined

_SIMILAR_FACTOR = 1.5  # measurements of one machine vary by less than this factor


class ProfiledPipeline(Protocol):
    """The attributes of a pipeline that a profile uses."""

    @property
    def subject(self) -> Subject: ...


@dataclass(frozen=True)
class Profile:
    """The measurements of each operator, by the operator's ordinal in the pipeline as written.

    Args:
        pipeline: digest of the pipeline's operators and their parameters.
        operators: measurements of operators and sources by ordinal.
        machine: the machine that was measured.
        rows: rows read from sources.
        seconds: wall time of the measurement.
        workers: number of concurrent tasks.
        executor: name of the executor.
        own: CPU seconds of the loader's thread, which cuts and delivers batches, per row read.
        around: CPU seconds of workers outside operators (gathering rows, converting batches), per row read.

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

    # ---- figures -----------------------------------------------------------------------------------------------------

    @property
    def shares(self) -> dict[int, float]:
        """Each operator's share of the total wall time of all operators, 0 to 1."""
        total = sum(figures.seconds for figures in self.operators.values())
        return {i: figures.seconds / total if total else 0.0 for i, figures in self.operators.items()}

    @property
    def bottleneck(self) -> str:
        """The label of the operator with the most time; "nothing was measured" if no operator was measured."""
        shares = self.shares
        costliest = max(shares, key=lambda i: shares[i], default=None)
        return (
            self.operators[costliest].label if costliest is not None and shares[costliest] else "nothing was measured"
        )

    @property
    def gil(self) -> float:
        """The share of the operators' time during which they hold the GIL, 0 to 1; unmeasured operators count as 0."""
        shares = self.shares
        return sum(share * (self.operators[i].gil or 0.0) for i, share in shares.items())

    def table(self) -> str:
        """Return the figures as a text table at most 100 columns wide, sources first.

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
        """Return the rows of the table, the header first."""
        shares = self.shares
        return [text.HEAD, *(text.cells(self.operators[i], shares[i]) for i in sorted(self.operators))]

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.table())}</pre>"

    # ---- comparison --------------------------------------------------------------------------------------------------

    def differences(self, machine: Machine) -> list[str]:
        """List how ``machine`` differs from the measured machine, as far as that affects measurements."""
        mine, phrases = self.machine, []
        if mine.cores != machine.cores:
            phrases.append(f"{mine.cores} core(s) there, {machine.cores} here")
        if not _is_similar(mine.memory, machine.memory):
            phrases.append(f"{text.byte_size(mine.memory)} of memory there, {text.byte_size(machine.memory)} here")
        if mine.speed and machine.speed and not _is_similar(mine.speed, machine.speed):
            phrases.append(f"a core is {machine.speed / mine.speed:.1f}x as fast here")
        return phrases

    def fits(self, machine: Machine) -> bool:
        """Return whether the measurements are valid on ``machine``."""
        return not self.differences(machine)

    def check(self, pipeline: Subject | ProfiledPipeline) -> None:
        """Raise a PlanError that names the first difference if this is the profile of another pipeline."""
        subject = pipeline if isinstance(pipeline, Subject) else pipeline.subject
        if subject.digest != self.pipeline:
            raise PlanError(
                f"the profile is of another pipeline: {self._first_difference(subject)}",
                site=user_site(),
                fix="profile this pipeline: p.profile()",
            )

    def _first_difference(self, subject: Subject) -> str:
        """Describe the first operator that differs."""
        for i, figures in sorted(self.operators.items()):
            if i not in subject.labels:
                return f"it has an operator {i}, {figures.label}, which this pipeline lacks"
            if subject.labels[i] != figures.label:
                return f"operator {i} is {figures.label} there and {subject.labels[i]} here"
        return "operators were added or connected in another way, or have other parameters"

    def merge(self, newer: Profile) -> Profile:
        """Combine this profile with a newer one of the same pipeline.

        Measurements are averaged, weighted by rows. Newer rows count twice, and the newer profile weighs at least a
        third. Older times are ignored if the machine differs. If the newer profile had more concurrent tasks, its wall
        time includes more waiting for a core or the GIL, so the shorter of both waiting times is used.

        Raises:
            PlanError: ``newer`` is the profile of another pipeline.
        """
        newer.check(Subject(self.pipeline, {i: figures.label for i, figures in self.operators.items()}))
        timed = self.fits(newer.machine)
        crowded = newer.workers > max(self.workers, 1)
        merged = dict(self.operators)
        for i, figures in newer.operators.items():
            older = self.operators.get(i)
            if figures.rows:
                merged[i] = figures if older is None or not older.rows else combined(older, figures, timed, crowded)
            else:
                merged.setdefault(i, figures)
        return replace(newer, operators=merged)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON that diffs well. The file is replaced atomically.

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
        """Load a saved profile. Use ``fits`` to check whether it is valid on this machine.

        Args:
            path: a file that ``save`` wrote.
            pipeline: the expected pipeline; profiles of other pipelines are rejected. None accepts any.

        Raises:
            PlanError: the file cannot be read, is not a profile, or has another version or pipeline.
        """
        name = os.fspath(path)
        try:
            profile: Profile = saved.checked(Profile, saved.read(name), "the profile")
        except OSError as error:
            raise PlanError(f"{name}: the profile cannot be read: {error}", site=user_site()) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise PlanError(
                f"{name} is not a valid profile: {error}",
                site=user_site(),
                fix="create it again: p.profile().save(path)",
            ) from error
        if pipeline is not None:
            profile.check(pipeline)
        return profile


def _is_similar(a: float, b: float) -> bool:
    return a <= b * _SIMILAR_FACTOR and b <= a * _SIMILAR_FACTOR
