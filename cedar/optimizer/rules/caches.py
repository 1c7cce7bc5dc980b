"""cache_place and layout_place: rules that choose where rows are stored for later epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cedar.datasets.base import Read
from cedar.datasets.filesource import FileSource
from cedar.operators.cache import Cache as CacheOperator
from cedar.optimizer.facts import CacheCosts, Change, Facts, Outcome, Refusal
from cedar.optimizer.flow import find_flow, find_loads
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.scan import Scan
from cedar.plan.steps.reorder import is_row_operator
from cedar.plan.steps.single import Cache, chain_below, kept_above

_AUTO = "auto"
_MIN_RATIO = 1.1  # minimum ratio of the new gain to the old one, since measurements have noise
_MIN_SAVING = 0.05  # fraction of an epoch's time that an inserted cache must save


@dataclass(frozen=True)
class _CachePoint:
    """A possible position of a cache in a chain, with figures per row that the source reads.

    Args:
        saved: seconds saved in later epochs.
        bytes: bytes stored, and read back.
    """

    saved: float
    bytes: float

    def gain(self, rows: int, per_byte: float, room: float) -> float:
        """Return seconds gained per row. Rows that do not fit in ``room`` bytes are computed again."""
        total = rows * self.bytes
        return (self.saved - self.bytes * per_byte) * (min(1.0, room / total) if total else 1.0)


def cache_place(node: Node, facts: Facts) -> Outcome:
    """Move ``cache("auto")`` among the operators right above a source, below the first random one, or drop it.

    After the first epoch, reading the cache replaces the operators below it. A cache with a location from the user
    does not move. If the budget sets a limit for caches, the rule may insert a cache.
    """
    if facts.profile is None or facts.keeping is None or not (is_row_operator(node) or not node.inputs):
        return None
    chain = chain_below(node, facts)
    if chain is None:
        return None
    hints = [n for n in chain if n.storage is not None]
    wanted = facts.keeping.wanted and not hints and not kept_above(node, facts)
    if not wanted and (len(hints) != 1 or hints[0].storage != _AUTO):
        return None
    return _placed(chain, hints[0] if hints else None, facts, facts.keeping)


def _placed(chain: list[Node], hint: Node | None, facts: Facts, keeping: CacheCosts) -> Outcome:
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
    gains = [place.gain(rows, keeping.seconds_per_byte(_AUTO), room) for place in places]
    best = max(range(len(gains)), key=lambda i: (gains[i], -i))
    how = f"above {facts.label((source, *work)[best])} ({_format_saving(places[best], rows)})"
    if hint is None:
        return Change(Cache(best), label, how) if gains[best] > _MIN_SAVING * places[-1].saved else None
    now = min(chain.index(hint) - 1, fixed)
    if gains[best] <= 0:
        why = "no memory to store rows" if not room else _format_loss(places[now], keeping)
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


def _format_loss(place: _CachePoint, keeping: CacheCosts) -> str:
    loading = place.bytes * keeping.seconds_per_byte(_AUTO)
    return f"reading a row back takes {loading * 1e6:.3g} us, computing it {place.saved * 1e6:.3g} us"


def layout_place(node: Node, facts: Facts) -> Outcome:
    """Store each split's rows after all operators whose results are the same in every epoch, for ``Budget(layout=)``.

    The position does not depend on measurements, so that later runs find the files that this run wrote.
    """
    if facts.keeping is None or facts.keeping.layout is None or not (is_row_operator(node) or not node.inputs):
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
