"""Older figures of an operator refreshed by newer ones."""

from __future__ import annotations

from cedar.profile.figures import OperatorProfile


def refreshed(old: OperatorProfile, new: OperatorProfile, timed: bool, crowded: bool) -> OperatorProfile:
    """The figures of both; see ``Profile.merge``. ``timed``: seconds of the old ones hold on the new ones' machine."""
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
