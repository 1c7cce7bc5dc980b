"""The measured costs of operators, the properties of a machine, and a plain-text table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cedar.core.block import Observation
from cedar.core.printable import one_line


@dataclass(frozen=True)
class OperatorProfile:
    """An operator's measured costs per input row.

    Args:
        label: the operator's label.
        calls: number of measured blocks.
        rows: number of measured input rows.
        wall, cpu: seconds per input row.
        keep: number of output rows per input row.
        bytes_in, bytes_out: decoded bytes per input row and per output row, over all columns.
        columns: decoded bytes per output row of each column that the operator writes (a source writes all).
        gil: the share of its time during which it holds the GIL, 0 to 1; None if not measured.
        call: the seconds of ``wall`` that are fixed costs per call, which larger blocks reduce; 0 if not measured.
    """

    label: str
    calls: int
    rows: int
    wall: float
    cpu: float
    keep: float = 1.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    columns: dict[str, float] = field(default_factory=dict)
    gil: float | None = None
    call: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall seconds for all measured rows."""
        return self.wall * self.rows

    @staticmethod
    def of(label: str, seen: Sequence[Observation]) -> OperatorProfile:
        """Summarize observations. Times are medians over rows, without the slow first call."""
        seen = [o for o in seen if o.rows_in]
        later = seen[1:] if len(seen) > 1 else seen
        rows, rows_out = sum(o.rows_in for o in seen), sum(o.rows_out for o in seen)
        names = {name for o in seen for name in o.columns}
        return OperatorProfile(
            label=label,
            calls=len(seen),
            rows=rows,
            wall=_median((o.wall / o.rows_in, o.rows_in) for o in later),
            cpu=_median((o.cpu / o.rows_in, o.rows_in) for o in later),
            keep=rows_out / rows if rows else 1.0,
            bytes_in=sum(o.bytes_in for o in seen) / max(rows, 1),
            bytes_out=sum(o.bytes_out for o in seen) / max(rows_out, 1),
            columns={n: sum(o.columns.get(n, 0) for o in seen) / max(rows_out, 1) for n in sorted(names)},
        )


@dataclass(frozen=True)
class Machine:
    """The properties of a machine; measured once and stored.

    Args:
        cores: number of cores that this process may use.
        memory: bytes of memory.
        ship_seconds: seconds to send an empty task to a worker process and receive its result.
        ship_bytes: bytes per second to and from a process.
        start_seconds: seconds until a new worker process is ready.
        speed: rounds per second of a small fixed task on one core; 0 if not measured.
    """

    cores: int
    memory: int
    ship_seconds: float = 5e-4
    ship_bytes: float = 2e9
    start_seconds: float = 0.5
    speed: float = 0.0


@dataclass(frozen=True)
class Subject:
    """The pipeline of a profile: a digest of its operators and their parameters, and the labels by ordinal."""

    digest: str
    labels: Mapping[int, str]


def _median(weighted: Iterable[tuple[float, int]]) -> float:
    """Return the weighted median; 0 if there are no values."""
    ordered = sorted(weighted)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return 0.0


def combined(old: OperatorProfile, new: OperatorProfile, timed: bool, crowded: bool) -> OperatorProfile:
    """Combine two profiles of an operator as in ``Profile.merge``. ``timed``: the machines have the same speed."""
    mine, theirs = 2.0 * new.rows, float(min(old.rows, 4 * new.rows))
    share = mine / (mine + theirs)

    def mixed(before: float, after: float) -> float:
        return share * after + (1 - share) * before

    cpu, wall = new.cpu, new.wall
    if timed:
        waits = (max(old.wall - old.cpu, 0.0), max(new.wall - new.cpu, 0.0))
        cpu = mixed(old.cpu, new.cpu)
        wall = cpu + min(waits) if crowded else mixed(old.wall, new.wall)
    columns = {n: mixed(old.columns.get(n, size), size) for n, size in new.columns.items()}
    return OperatorProfile(
        label=new.label,
        calls=old.calls + new.calls,
        rows=old.rows + new.rows,
        wall=wall,
        cpu=cpu,
        keep=mixed(old.keep, new.keep),
        bytes_in=mixed(old.bytes_in, new.bytes_in),
        bytes_out=mixed(old.bytes_out, new.bytes_out),
        columns=columns or old.columns,
        gil=new.gil if new.gil is not None else old.gil,
        call=new.call or (old.call if timed else 0.0),
    )


_STEPS = 30


def cores_kept(share: float, workers: int) -> float:
    """Return how many cores ``workers`` workers keep busy if each needs a shared lock for ``share`` of its work.

    Examples:
        >>> cores_kept(0.0, 4), cores_kept(1.0, 4), round(cores_kept(0.5, 2), 2)
        (4.0, 1.0, 1.6)
    """
    queue = kept = 0.0
    for n in range(1, workers + 1):
        locked = share * (1 + queue)
        kept = n / (1 - share + locked)
        queue = kept * locked
    return kept


def lock_share(cores: float, workers: int) -> float:
    """Return the share of their work, 0 to 1, for which workers need a lock, given how many cores they keep busy.

    Examples:
        >>> round(lock_share(1.6, 2), 2), lock_share(1.0, 2), round(lock_share(4.0, 4), 2)
        (0.5, 1.0, 0.0)
    """
    if cores <= 1 or workers < 2:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cores_kept(middle, workers) > cores else (low, middle)
    return high


# ---- a profile as text -----------------------------------------------------------------------------------------------


WIDTH = 100
HEAD = ("operator", "us/row wall", "us/row cpu", "keep", "bytes/row", "GIL", "share")
_LEFT = (0, 3, 4)


def cells_of(figures: OperatorProfile, share: float) -> tuple[str, ...]:
    """Return the table cells of one operator."""
    return (
        one_line(figures.label),
        micros(figures.wall),
        micros(figures.cpu),
        f"{figures.keep:.3g}",
        f"{byte_size(figures.bytes_in)} -> {byte_size(figures.bytes_out)}",
        "?" if figures.gil is None else f"{figures.gil:.0%}",
        f"{share:.1%}",
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as aligned lines of at most ``WIDTH`` characters. The first cell is cut if necessary."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1))
    lines = []
    for row in rows:
        cells = [cut(row[0], widths[0]), *row[1:]]
        padded = [c.ljust(w) if i in _LEFT else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
    return lines


def cut(text: str, width: int) -> str:
    """Return the text on one line, cut to ``width`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: max(width - 3, 1)] + "..."


def micros(seconds: float) -> str:
    """Format seconds as microseconds with three digits."""
    amount = seconds * 1e6
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}" if amount >= 1e-3 else "0"


def byte_size(size: float) -> str:
    """Format a size in bytes with a unit and three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
