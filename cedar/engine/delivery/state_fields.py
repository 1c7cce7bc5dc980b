"""Validate a state field by field when it is loaded, so that all other code can rely on its structure.

A state is JSON from an untrusted source. This module checks only that its positions are nested lists of counts; whether
a position exists in a pipeline is checked by ``Stream.fits``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import is_count, is_list
from cedar.engine.streams.lane_states import END
from cedar.engine.streams.lanes import DONE

Test: TypeAlias = Callable[[Any], bool]
_MAX_DEPTH = 100  # maximum nesting of lists in a position
_MAX_SHOWN = 60


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return is_count(value) and not isinstance(value, bool)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _optional(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _list_of(test: Test) -> Test:
    return lambda value: isinstance(value, (list, tuple)) and all(map(test, value))


def _dict_of(test: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(_is_string(k) and test(v) for k, v in value.items())


def _fields(tests: dict[str, Test]) -> Test:
    return lambda value: isinstance(value, dict) and all(k in value and test(value[k]) for k, test in tests.items())


def _is_position(value: Any) -> bool:
    """Check ``[at, skip]``, where ``at`` is an operator's position."""
    return is_list(value, 2) and _at(value[0], 0) and _is_number(value[1])


def _at(value: Any, depth: int) -> bool:
    if isinstance(value, (list, tuple)):
        return depth < _MAX_DEPTH and all(_at(inner, depth + 1) for inner in value)
    return value is None or is_count(value)


def _is_deal(value: Any) -> bool:
    """Check ``[[taken, position below or None, number or None], skip]``."""
    if not _is_position(value) or not is_list(value[0], 3):
        return False
    taken, below, number = value[0]
    return _is_number(taken) and (below is None or _is_position(below)) and (number is None or _is_number(number))


def _is_turn(value: Any) -> bool:
    """Check ``[world, chunk, units received by each rank]``."""
    return (
        is_list(value, 3)
        and all(map(_is_number, value[:2]))
        and min(value[:2]) > 0
        and _list_of(_is_number)(value[2])
        and len(value[2]) == value[0]
    )


def _is_number_list(value: Any) -> bool:
    return _list_of(lambda each: isinstance(each, (int, float)) and not isinstance(each, bool))(value)


def _is_weights(value: Any) -> bool:
    """Check ``[weights as written, weights set in the run]``; None means a function, or no change."""
    if not is_list(value, 2) or not _list_of(_optional(lambda each: isinstance(each, (int, float))))(value[0]):
        return False
    return value[1] is None or _is_number_list(value[1])


def _is_drawn(value: Any) -> bool:
    """Check a dict from mixture number to a list of ``[unit from which weights apply, weights]``. The first may also
    have the positions in the inputs at which the mixture begins, with None for exhausted inputs.
    """

    def is_turns(turns: Any) -> bool:
        first, *others = turns if _list_of(lambda _: True)(turns) and turns else [None]
        begins = is_list(first, 3) and _list_of(_optional(_is_position))(first[2])
        plain = [first[:2] if begins else first, *others]
        if not all(is_list(each, 2) and _is_number(each[0]) and _is_number_list(each[1]) for each in plain):
            return False
        return bool(first[0] == 0)

    return _dict_of(is_turns)(value)


def _is_lane(value: Any) -> bool:
    """Check a ``LaneState`` as a list."""
    if not is_list(value, 9) and not (is_list(value, 10) and _is_drawn(value[9])):
        return False
    if not all(map(_is_number, [*value[:3], *value[4:6]])):
        return False
    number, of, _, stop, turn, turns, history, position, keeps = value[:9]
    return (
        number < of
        and turn < turns
        and _optional(_is_number)(stop)
        and _list_of(_is_turn)(history)
        and (position is None or position == END or _is_deal(position))
        and (keeps == END if isinstance(keeps, str) else _optional(_is_number)(keeps))
        and (keeps != END or position != END)
    )


def _is_assignment(value: Any) -> bool:
    """Check ``[number of lanes, number of splits that each has started]``; see ``lanes.Past``."""
    if not is_list(value, 2) or not _is_number(value[0]):
        return False
    return is_list(value[1], value[0]) and value[0] > 0 and all(k == DONE or _is_number(k) for k in value[1])


def _is_interval(value: Any) -> bool:
    """Check ``[from, to]``, an interval of an input's units; ``to`` is None if it has no end."""
    return is_list(value, 2) and _is_number(value[0]) and (value[1] is None or _is_number(value[1]))


_MIXED: dict[str, tuple[Test, Any]] = {
    "since": (_is_number, 0),
    "left": (_dict_of(_list_of(_list_of(_is_interval))), {}),
    "drawn": (_is_drawn, {}),
}
_ENTRY = _fields({"history": _list_of(_is_turn), "deal": _optional(_is_deal), "lanes": _optional(_list_of(_is_lane))})


def _is_entry(value: Any) -> bool:
    """Check the entry of a data epoch in progress, and of the previous epoch in it, if any."""
    for _ in range(_MAX_DEPTH):
        if not _ENTRY(value):
            return False
        if not all(test(value.get(name, default)) for name, (test, default) in _MIXED.items()):
            return False
        past = value.get("past", [])
        if not _list_of(_is_assignment)(past) or any(lane[2] > len(past) for lane in value["lanes"] or ()):
            return False
        if value.get("before") is None:
            return True
        if not (isinstance(value["before"], dict) and _is_number(value["before"].get("epoch"))):
            return False
        value = value["before"].get("entry")
    return False


def _is_open(value: Any) -> bool:
    """Check a dict from data epoch numbers to their entries."""
    return _dict_of(_is_entry)(value) and all(k.isascii() and k.isdecimal() and len(k) < 19 for k in value)


def _is_place(value: Any) -> bool:
    """Check ``[step, data epoch, its open entries]``, the position of another rank."""
    return is_list(value, 3) and all(map(_is_number, value[:2])) and _is_open(value[2])


def _is_marks(value: Any) -> bool:
    """Check ``[stamps, content hashes]``, lists with one string for each run of files."""
    return is_list(value, 2) and all(map(_list_of(_is_string), value)) and len(value[0]) == len(value[1])


_STATE: dict[str, Test] = {
    "cedar": _is_number, "pipeline": _is_string, "sources": _list_of(_is_string), "code": _is_string, "seed": _is_seed,
    "split_batches": _is_bool, "steps": _optional(_is_number), "epoch": _is_number, "step": _is_number,
    "rank": _is_number, "world": _is_number, "data": _is_number, "open": _is_open, "seen": _is_number,
    "check": _is_string, "skipped": _dict_of(_is_number),
    "begun": _fields({"step": _is_number, "data": _is_number, "open": _is_open}),
}  # fmt: skip


_OPTIONAL: dict[str, tuple[Test, Any]] = {  # with default values
    "files": (_list_of(_optional(_is_marks)), []), "counts": (_optional(_is_string), None),
    "order": (lambda value: value == "any", "any"), "operators": (_list_of(_is_string), []),
    "listings": (_list_of(_optional(_is_string)), []), "mix": (_dict_of(_is_weights), {}),
    "ranks": (_dict_of(_is_place), {}),
    "earlier": (_is_number, 0), "snapshots": (_list_of(_optional(_is_seed)), []),
}  # fmt: skip


def fault_of(state: dict[str, Any]) -> str | None:
    """Return why a state is invalid, such as the field that is missing or has an invalid value; None if it is valid.

    Examples:
        >>> fault_of({"cedar": "1"})
        "'cedar' is '1'"
    """
    for name, test in _STATE.items():
        if name not in state:
            return f"{name!r} is missing"
        if not test(state[name]):
            shown = repr(state[name])
            return f"{name!r} is {shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + '...'}"
    for name, (test, default) in _OPTIONAL.items():
        if not test(state.get(name, default)):
            return f"{name!r} has an invalid value"
    if state.get("numeric") is not None:
        try:
            NumericEnvironment.of_json(state["numeric"])
        except ValueError as error:
            return str(error)
    if state["rank"] >= state["world"]:
        return f"'rank' is {state['rank']} of {state['world']}"
    return None
