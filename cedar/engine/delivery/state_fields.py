"""Validate a state field by field when it is loaded, so that all other code can rely on its structure.

A state is JSON from an untrusted source. The positions in it belong to operators: ``Stream.fits`` checks whether one
fits a pipeline; here they are only checked to be nested lists of counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import is_count, is_list
from cedar.engine.streams.lane_states import END
from cedar.engine.streams.lanes import DONE

Test: TypeAlias = Callable[[Any], bool]
_DEPTH = 100  # maximum nesting of lists in a position
_SHOWN = 60


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return is_count(value) and not isinstance(value, bool)


def _seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _some(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _list_of(test: Test) -> Test:
    return lambda value: isinstance(value, (list, tuple)) and all(map(test, value))


def _dict_of(test: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(_text(k) and test(v) for k, v in value.items())


def _fields(tests: dict[str, Test]) -> Test:
    return lambda value: isinstance(value, dict) and all(k in value and test(value[k]) for k, test in tests.items())


def _position(value: Any) -> bool:
    """Check ``[at, skip]``, where ``at`` is an operator's position."""
    return is_list(value, 2) and _at(value[0], 0) and _number(value[1])


def _at(value: Any, depth: int) -> bool:
    if isinstance(value, (list, tuple)):
        return depth < _DEPTH and all(_at(inner, depth + 1) for inner in value)
    return value is None or is_count(value)


def _deal(value: Any) -> bool:
    """Check ``[[taken, position below or None, number or None], skip]``."""
    if not _position(value) or not is_list(value[0], 3):
        return False
    taken, below, number = value[0]
    return _number(taken) and (below is None or _position(below)) and (number is None or _number(number))


def _turn(value: Any) -> bool:
    """Check ``[world, chunk, units taken by each rank]``."""
    return (
        is_list(value, 3)
        and all(map(_number, value[:2]))
        and min(value[:2]) > 0
        and _list_of(_number)(value[2])
        and len(value[2]) == value[0]
    )


def _some_weights(value: Any) -> bool:
    return _list_of(lambda each: isinstance(each, (int, float)) and not isinstance(each, bool))(value)


def _weights(value: Any) -> bool:
    """Check ``[as written, as changed]``: None stands for a weight that is a function, or for no change."""
    if not is_list(value, 2) or not _list_of(_some(lambda each: isinstance(each, (int, float))))(value[0]):
        return False
    return value[1] is None or _some_weights(value[1])


def _drawn(value: Any) -> bool:
    """Check, by mixture number, the list of ``[unit from which weights apply, weights]``."""
    turn = lambda each: is_list(each, 2) and _number(each[0]) and _some_weights(each[1])  # noqa: E731
    return _dict_of(lambda turns: _list_of(turn)(turns) and bool(turns) and turns[0][0] == 0)(value)


def _lane(value: Any) -> bool:
    """Check a ``LaneState`` as a list."""
    if not is_list(value, 9) and not (is_list(value, 10) and _drawn(value[9])):
        return False
    if not all(map(_number, [*value[:3], *value[4:6]])):
        return False
    number, of, _, stop, turn, turns, history, position, keeps = value[:9]
    return (
        number < of
        and turn < turns
        and _some(_number)(stop)
        and _list_of(_turn)(history)
        and (position is None or position == END or _deal(position))
        and _some(_number)(keeps)
    )


def _dealt(value: Any) -> bool:
    """Check ``[lanes, what each of them keeps]``; see ``lanes.Past``."""
    if not is_list(value, 2) or not _number(value[0]):
        return False
    return is_list(value[1], value[0]) and value[0] > 0 and all(k == DONE or _number(k) for k in value[1])


def _interval(value: Any) -> bool:
    """Check ``[from, to]``, units of an input; ``to`` is None for no end."""
    return is_list(value, 2) and _number(value[0]) and (value[1] is None or _number(value[1]))


_MIXED: dict[str, tuple[Test, Any]] = {
    "since": (_number, 0),
    "left": (_dict_of(_list_of(_list_of(_interval))), {}),
    "drawn": (_drawn, {}),
}
_ENTRY = _fields({"history": _list_of(_turn), "deal": _some(_deal), "lanes": _some(_list_of(_lane))})


def _entry(value: Any) -> bool:
    """Check a data epoch in progress, and the rest of the epoch before it, if any."""
    for _ in range(_DEPTH):
        if not _ENTRY(value):
            return False
        if not all(test(value.get(name, default)) for name, (test, default) in _MIXED.items()):
            return False
        past = value.get("past", [])
        if not _list_of(_dealt)(past) or any(lane[2] > len(past) for lane in value["lanes"] or ()):
            return False
        if value.get("before") is None:
            return True
        if not (isinstance(value["before"], dict) and _number(value["before"].get("epoch"))):
            return False
        value = value["before"].get("entry")
    return False


def _open(value: Any) -> bool:
    """Check the data epochs in progress, by number."""
    return _dict_of(_entry)(value) and all(k.isascii() and k.isdecimal() and len(k) < 19 for k in value)


def _marks(value: Any) -> bool:
    """Check stamps and content hashes of runs of files, one string per run."""
    return is_list(value, 2) and all(map(_list_of(_text), value)) and len(value[0]) == len(value[1])


_STATE: dict[str, Test] = {
    "cedar": _number, "pipeline": _text, "sources": _list_of(_text), "code": _text, "seed": _seed,
    "split_batches": _flag, "steps": _some(_number), "epoch": _number, "step": _number, "rank": _number,
    "world": _number, "data": _number, "open": _open, "seen": _number, "check": _text, "skipped": _dict_of(_number),
    "begun": _fields({"step": _number, "data": _number, "open": _open}),
}  # fmt: skip


_OPTIONAL: dict[str, tuple[Test, Any]] = {  # with default values
    "files": (_list_of(_some(_marks)), []), "counts": (_some(_text), None),
    "order": (lambda value: value == "any", "any"), "operators": (_list_of(_text), []),
    "listings": (_list_of(_some(_text)), []), "mix": (_dict_of(_weights), {}),
    "earlier": (_number, 0), "snapshots": (_list_of(_some(_seed)), []),
}  # fmt: skip


def fault_of(state: dict[str, Any]) -> str | None:
    """Return why a state is invalid, or None if it is valid: which field is missing or has an invalid value.

    Examples:
        >>> fault_of({"cedar": "1"})
        "'cedar' is '1'"
    """
    for name, test in _STATE.items():
        if name not in state:
            return f"{name!r} is missing"
        if not test(state[name]):
            shown = repr(state[name])
            return f"{name!r} is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}"
    for name, (test, default) in _OPTIONAL.items():
        if not test(state.get(name, default)):
            return f"{name!r} holds what it cannot"
    if state.get("numeric") is not None:
        try:
            NumericEnvironment.of_json(state["numeric"])
        except ValueError as error:
            return str(error)
    if state["rank"] >= state["world"]:
        return f"'rank' is {state['rank']} of {state['world']}"
    return None
