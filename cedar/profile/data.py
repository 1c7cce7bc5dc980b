"""Profile: the measurements of each operator of one pipeline on one machine."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

from cedar.core.errors import PlanError, user_site
from cedar.core.printable import escape, printable
from cedar.profile.figures import (
    HEAD,
    WIDTH,
    Machine,
    OperatorProfile,
    Subject,
    aligned,
    byte_size,
    cells_of,
    combined,
    cut,
)
from cedar.store.files import write_whole

_SIMILAR_FACTOR = 1.5  # measurements of one machine vary by less than this factor
_VERSION = 2
_FORMAT = "cedar profile"
_DIGITS = 5  # significant digits in a file; further digits are noise


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
        lines = aligned(self.cells())
        where = f"{self.executor}, {self.workers} worker(s), {self.machine.cores} core(s)"
        reported = f"{self.rows:,} rows in {self.seconds:.2f} s, {where}; bottleneck: {self.bottleneck}"
        lines.append(printable(cut(reported, WIDTH)))
        if self.gil > 0.5:
            lines.append(f"the GIL is held {self.gil:.0%} of the time: threads give at most {1 / self.gil:.1f}x")
        return "\n".join(lines)

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows of the table, the header first."""
        shares = self.shares
        return [HEAD, *(cells_of(self.operators[i], shares[i]) for i in sorted(self.operators))]

    __repr__ = __str__ = table

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.table())}</pre>"

    # ---- comparison --------------------------------------------------------------------------------------------------

    def differences(self, machine: Machine) -> list[str]:
        """List how ``machine`` differs from the measured machine, as far as that affects measurements."""
        mine, phrases = self.machine, []
        if mine.cores != machine.cores:
            phrases.append(f"{mine.cores} core(s) there, {machine.cores} here")
        if not _is_similar(mine.memory, machine.memory):
            phrases.append(f"{byte_size(mine.memory)} of memory there, {byte_size(machine.memory)} here")
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
            _write(name, body, self.operators)
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
            profile: Profile = _checked(Profile, _read(name), "the profile")
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


# ---- the file: JSON that diffs well, whose values are checked when it is read ----------------------------------------


def _write(name: str, body: dict[str, Any], operators: dict[int, OperatorProfile]) -> None:
    """Write the file atomically; raise OSError if that fails."""
    listed = [{"ordinal": i, **asdict(figures)} for i, figures in sorted(operators.items())]
    document = {"format": _FORMAT, "version": _VERSION, **body, "operators": listed}
    written = json.dumps(_rounded(document), indent=2, ensure_ascii=False)
    write_whole(name, f"{written}\n".encode(errors="backslashreplace"))  # file names may contain invalid Unicode


def _read(name: str) -> dict[str, Any]:
    """Return the values that ``write`` saved, including "operators". Raise ValueError if the file is invalid."""
    with open(name, encoding="utf-8") as file:
        document = json.load(file, parse_constant=_reject_constant)
    if not isinstance(document, dict) or document.pop("format", None) != _FORMAT:
        raise ValueError(f'it does not begin with "format": "{_FORMAT}"')
    version = document.pop("version", None)
    if version != _VERSION:
        raise ValueError(f"it has version {version!r}, but this cedar reads version {_VERSION}")
    machine = _checked(Machine, document.get("machine"), "machine")
    return {**document, "machine": machine, "operators": _operators(document.get("operators"))}


def _operators(listed: Any) -> dict[int, OperatorProfile]:
    if not isinstance(listed, list):
        raise ValueError("operators is not a list")  # noqa: TRY004 - the file is invalid, not the argument
    operators: dict[int, OperatorProfile] = {}
    for item in listed:
        ordinal = item.pop("ordinal", None) if isinstance(item, dict) else None
        if isinstance(ordinal, bool) or not isinstance(ordinal, int) or ordinal < 0 or ordinal in operators:
            raise ValueError(f"operators: ordinal {ordinal!r} is invalid or repeated")
        operators[ordinal] = _checked(OperatorProfile, item, f"operator {ordinal}")
    return operators


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "dict[str, float]": (dict,),
    "dict[int, OperatorProfile]": (dict,),
    "Machine": (Machine,),
}


def _checked(kind: Any, entry: Any, label: str) -> Any:
    """Build a dataclass from a dict with exactly its fields. Check types, and that numbers are finite and not negative.

    Raises:
        ValueError: a value is invalid; the message starts with ``label``.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{label} is missing")  # noqa: TRY004 - the file is invalid, not the argument
    known = {f.name: str(f.type) for f in fields(kind)}
    for name in sorted({*entry, *known}):
        if name not in known or name not in entry:
            raise ValueError(f"{label} has {'no' if name in known else 'an unknown'} {name!r}")
        value = entry[name]
        sized = known[name] == "dict[str, float]" and isinstance(value, dict)
        figures = [v if isinstance(v, (int, float)) else math.nan for v in value.values()] if sized else [value]
        if not isinstance(value, _TYPES[known[name]]) or not all(map(_is_sound, figures)):
            raise ValueError(f"{label}: {name} is {value!r}")
    if kind is Machine and not entry["ship_bytes"]:
        raise ValueError(f"{label}: ship_bytes is 0")
    if (entry.get("gil") or 0) > 1:
        raise ValueError(f"{label}: gil is {entry['gil']!r}")
    return kind(**entry)


def _is_sound(value: Any) -> bool:
    """Return False for negative or infinite numbers and for booleans, and True for all other values."""
    if isinstance(value, bool):
        return False
    return not isinstance(value, (int, float)) or (math.isfinite(value) and value >= 0)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a valid number")
