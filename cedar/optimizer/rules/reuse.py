"""Rules that compute once: equal operators and equal rows, and rows that are stored for later epochs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.operators.base import Mergeable
from cedar.operators.cache import Cache as CacheOperator
from cedar.operators.dedup import MakesGroups
from cedar.operators.dedup_estimate import PAYS
from cedar.optimizer.flow import find_flow, find_loads
from cedar.optimizer.rewrite import Change, Outcome
from cedar.plan import graph
from cedar.plan.graph import Node, Scan
from cedar.plan.steps.order import Group, features, passes_groups
from cedar.plan.steps.single import Cache, Share, chain_below, equal_before, kept_above
from cedar.plan.steps.step import CacheLimits, Facts, Refusal, read_from

_AUTO = "auto"
_MIN_RATIO = 1.1  # minimum ratio of the new gain to the old one, since measurements have noise
_MIN_SAVING = 0.05  # fraction of an epoch's time that an inserted cache must save
_SECONDS_PER_BYTE = 1e-10  # of reading stored rows back from memory: 10 GB/s


@dataclass(frozen=True)
class _CachePoint:
    """A possible position of a cache in a chain, with figures per row that the source reads.

    Args:
        saved: seconds saved in later epochs.
        bytes: bytes stored, and read back.
    """

    saved: float
    bytes: float

    def gain(self, rows: int, room: float) -> float:
        """Return seconds gained per row. Rows that do not fit in ``room`` bytes are computed again."""
        total = rows * self.bytes
        return (self.saved - self.bytes * _SECONDS_PER_BYTE) * (min(1.0, room / total) if total else 1.0)


def cache_place(node: Node, facts: Facts) -> Outcome:
    """Move ``cache("auto")`` among the operators right above a source, below the first random one, or drop it.

    After the first epoch, reading the cache replaces the operators below it. A cache with a location from the user
    does not move. If the budget sets a limit for caches, the rule may insert a cache.
    """
    if facts.profile is None or facts.keeping is None or not (node.is_row_operator or not node.inputs):
        return None
    chain = chain_below(node, facts)
    if chain is None:
        return None
    hints = [n for n in chain if n.storage is not None]
    wanted = facts.keeping.wanted and not hints and not kept_above(node, facts)
    if not wanted and (len(hints) != 1 or hints[0].storage != _AUTO):
        return None
    return _placed(chain, hints[0] if hints else None, facts, facts.keeping)


def _placed(chain: list[Node], hint: Node | None, facts: Facts, keeping: CacheLimits) -> Outcome:
    source = chain[0]
    label = CacheOperator(_AUTO).label()
    rows = _rows(source)
    if facts.streams(source) or rows is None or facts.figures(source) is None:
        why = "it cannot be split" if facts.streams(source) else "how many rows it has is not known"
        return Refusal(f"of {facts.label(source)}, {why}", label) if hint is not None else None
    work = [n for n in chain[1:] if n is not hint]
    fixed = next((i for i, n in enumerate(work) if n.effects.random), len(work))
    places = _places(source, work[:fixed], facts)
    room = keeping.bytes / len(graph.sources(facts.root))
    gains = [place.gain(rows, room) for place in places]
    best = max(range(len(gains)), key=lambda i: (gains[i], -i))
    how = f"above {facts.label((source, *work)[best])} ({_format_saving(places[best], rows)})"
    if hint is None:
        return Change(Cache(best), label, how) if gains[best] > _MIN_SAVING * places[-1].saved else None
    now = min(chain.index(hint) - 1, fixed)
    if gains[best] <= 0:
        place, loading = places[now], places[now].bytes * _SECONDS_PER_BYTE
        why = f"reading a row back takes {loading * 1e6:.3g} us, computing it {place.saved * 1e6:.3g} us"
        why = why if room else "no memory to store rows"
        return Change(Cache(None), facts.label(hint), f"dropped: {why}")
    if gains[best] < _MIN_RATIO * gains[now] or best == now:
        why = f"best where it is: {_format_saving(places[now], rows)}"
        return Refusal(why, label) if _as_written(hint, facts) else None
    return Change(Cache(best), facts.label(hint), how)


def _rows(source: Node) -> int | None:
    try:
        splits = graph.splits_of(source)
    except Exception:  # noqa: BLE001 - the run lists them again and reports the error
        return None
    return splits.known_rows if splits and splits.counted else None


def _places(source: Node, work: Sequence[Node], facts: Facts) -> list[_CachePoint]:
    """Return a cache position above the source, and one above each operator."""
    loads = find_loads(facts.root, facts)
    flow = find_flow(facts.root, facts, loads)
    filters = source.operator.where if isinstance(source.operator, Scan) else ()
    read = flow.rate[id(source)]
    for each in filters:
        read /= loads[id(each)].keep
    saved, entering = loads[id(source)].busy, 1.0
    for each in filters:
        saved += entering * loads[id(each)].busy
        entering *= loads[id(each)].keep
    places = []
    for node in (source, *work):
        if node is not source:
            saved += entering * loads[id(node)].busy
            entering = flow.rate[id(node)] / read
        needed = flow.needs[id(node)]
        size = sum(size for name, size in flow.sizes[id(node)].items() if needed is None or name in needed)
        places.append(_CachePoint(saved, entering * size))
    return places


def _as_written(hint: Node, facts: Facts) -> bool:
    """Return whether the cache is still where the user put it."""
    if facts.ordinal(hint) is None:
        return False
    done = {facts.ordinal(n) for n in graph.walk(hint.inputs[0])} - {None}
    return done == {facts.ordinal(n) for n in graph.walk(hint.logical.inputs[0])}


def _format_saving(place: _CachePoint, rows: int) -> str:
    return f"saves {place.saved * 1e6:.3g} us a row after the first epoch, keeps {rows * place.bytes / 2**20:,.1f} MiB"


def layout_place(node: Node, facts: Facts) -> Outcome:
    """Store each split's rows after all operators whose results are the same in every epoch, for ``Budget(layout=)``.

    The position does not depend on measurements, so that later runs find the files that this run wrote.
    """
    if facts.keeping is None or facts.keeping.layout is None or not (node.is_row_operator or not node.inputs):
        return None
    chain = chain_below(node, facts)
    if chain is None or any(n.storage is not None for n in chain) or kept_above(node, facts):
        return None
    source, *work = chain
    if not isinstance(source.operator, Read) or not isinstance(source.operator.source, FileSource):
        return None
    cache = CacheOperator(facts.keeping.layout, layout=True)
    if facts.streams(source):
        return Refusal(f"of {facts.label(source)}, it cannot be split", cache.label())
    fixed = next((i for i, n in enumerate(work) if n.effects.random), len(work))
    step = Cache(fixed, facts.keeping.layout, layout=True)
    return Change(step, cache.label(), f"above {facts.label(chain[fixed])}")


# ---- equal operators and rows ----------------------------------------------------------------------------------------


def common(node: Node, facts: Facts) -> Outcome:
    """Replace a row operator by an earlier equal one with the same input.

    The rule does not merge sources or stream operators, since each has its own state. It merges random operators only
    if they are the same object, since two random operators draw different numbers.
    """
    if isinstance(node.operator, Read):
        return _refuse_sources(node, facts)
    if not node.is_row_operator or node.storage is not None:
        return None
    if len(facts.consumers[id(node.inputs[0])]) < 2:
        return _refuse_copies(node, facts)
    other = equal_before(node, facts)
    return None if other is None else Change(Share(), facts.label(node), f"is {facts.label(other)}, computed once")


def _refuse_sources(node: Node, facts: Facts) -> Refusal | None:
    """Refuse to merge two equal sources: their rows have different keys, which determine random draws and order."""
    assert isinstance(node.operator, Read)
    for other in facts.readers[read_from(node)]:
        if other is node:
            break
        assert isinstance(other.operator, Read)
        if node.operator.source == other.operator.source:
            why = "its rows have their own keys, which decide draws and order: use one pipeline in both places"
            return Refusal(f"it reads what {facts.label(other)} reads, but {why}", facts.label(node))
    return None


def _refuse_copies(node: Node, facts: Facts) -> Refusal | None:
    """Refuse to merge equal functions that write different columns, since each result may later be changed in place."""
    wanted, current = None if node.effects.random else _computes(node), node.inputs[0]
    while wanted is not None and (before := _computes(current)) is not None:
        writes = current.effects.writes
        if not writes or writes & (node.effects.reads or frozenset()):
            break
        if before == wanted:
            return Refusal(f"it computes what {facts.label(current)} does: with_columns() gives a result a second name")
        current = current.inputs[0]
    return None


def _computes(node: Node) -> Hashable | None:
    return node.operator.computes() if isinstance(node.operator, Mergeable) else None


def dedup_place(node: Node, facts: Facts) -> Outcome:
    """Move a ``dedup()`` below transforms of its features that map each value independently, if that saves time.

    ``dedup()`` changes no values, so it can also move past operators that do not touch its features.
    """
    if not isinstance(node.operator, MakesGroups) or facts.factors is None:
        return None
    grouped = features(node.operator)
    way = _passable(node, grouped, facts)
    touching = [(i, n) for i, n in enumerate(way) if _runs_once(n, grouped)]
    if not touching:
        return _blocked(way[-1].inputs[0] if way else node.inputs[0], grouped, facts)
    factors = facts.factors(node)
    whys = {i: _why_not(n, node, factors, facts) for i, n in touching}
    lowest = max((i for i, why in whys.items() if not why), default=None)
    if lowest is None:
        i, why = next(iter(whys.items()))
        return Refusal(f"before {facts.label(way[i])}: {why}", facts.label(node))
    below = [facts.label(n) for i, n in touching if i <= lowest and not whys[i]]
    return Change(Group(lowest + 1), facts.label(node), f"below {', '.join(below)}")


def _passable(node: Node, grouped: frozenset[str] | None, facts: Facts) -> list[Node]:
    """Return the operators below that a ``dedup()`` may pass, from the top down."""
    way = []
    current = node.inputs[0]
    while len(current.inputs) == 1 and len(facts.consumers[id(current)]) < 2 and passes_groups(current, grouped):
        way.append(current)
        current = current.inputs[0]
    return way


def _runs_once(node: Node, grouped: frozenset[str] | None) -> bool:
    """Return whether the operator would run only once for rows that are equal in these features."""
    reads = node.effects.reads
    return node.operator.group_use == "once" and reads is not None and (grouped is None or grouped >= reads)


def _blocked(node: Node, grouped: frozenset[str] | None, facts: Facts) -> Refusal | None:
    """Return a refusal if the operator below is an unmarked function of a feature."""
    effects = node.effects
    if grouped is None or not node.inputs or not effects.writes or not effects.writes & grouped or not effects.per_row:
        return None
    why = "draws for each row" if effects.random else "is not marked as changing one value by itself"
    return Refusal(f"{facts.label(node)} {why}, so it sees every row")


def _why_not(passed: Node, node: Node, factors: Mapping[str, float], facts: Facts) -> str:
    """Return why a transform should still process every row; "" if grouping saves time."""
    reads = sorted(passed.effects.reads or ())
    factor = min(factors.get(name, 1.0) for name in reads)
    if factor < PAYS:
        return f"rows of {', '.join(map(repr, reads))} repeat {factor:.3g} times, below {PAYS:g}"
    figures, own = facts.figures(passed), facts.figures(node)
    if figures is None or own is None:
        return ""  # not measured: assume that a function costs more than an index
    saved, again = figures.wall * (1 - 1 / factor), own.wall / factor
    if saved < again:
        return f"it saves {saved * 1e6:.3g} us a row, and grouping again takes {again * 1e6:.3g}"
    return ""
