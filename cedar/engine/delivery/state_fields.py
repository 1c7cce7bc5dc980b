"""What a state holds, field by field: read once, where it comes in, so that all else may take it as it is.

A state is JSON that anyone may have written. Positions inside it are of the operators' own making: whether one fits a
pipeline is asked of its streams (``Stream.fits``), here only that they are lists of counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import is_count, is_list
from cedar.engine.streams.lane_states import END
from cedar.engine.streams.lanes import DONE

Test: TypeAlias = Callable[[Any], bool]
_DEPTH = 100  # lists in each other in a position
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
    """``[at, skip]``, where ``at`` is an operator's."""
    return is_list(value, 2) and _at(value[0], 0) and _number(value[1])


def _at(value: Any, depth: int) -> bool:
    if isinstance(value, (list, tuple)):
        return depth < _DEPTH and all(_at(inner, depth + 1) for inner in value)
    return value is None or is_count(value)


def _deal(value: Any) -> bool:
    """``[[taken, position below or None, number or None], skip]``."""
    if not _position(value) or not is_list(value[0], 3):
        return False
    taken, below, number = value[0]
    return _number(taken) and (below is None or _position(below)) and (number is None or _number(number))


def _turn(value: Any) -> bool:
    """``[world, chunk, what each rank of it took]``."""
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
    """``[as written, as changed]``; None of what is a function, or was not changed."""
    if not is_list(value, 2) or not _list_of(_some(lambda each: isinstance(each, (int, float))))(value[0]):
        return False
    return value[1] is None or _some_weights(value[1])


def _drawn(value: Any) -> bool:
    """From which of its units on a mixture is drawn by which weights, by the numbers of mixtures."""
    turn = lambda each: is_list(each, 2) and _number(each[0]) and _some_weights(each[1])  # noqa: E731
    return _dict_of(lambda turns: _list_of(turn)(turns) and bool(turns) and turns[0][0] == 0)(value)


def _lane(value: Any) -> bool:
    """``LaneState``, as a list."""
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
    """``[lanes, what each of them keeps]``; see ``lanes.Past``."""
    if not is_list(value, 2) or not _number(value[0]):
        return False
    return is_list(value[1], value[0]) and value[0] > 0 and all(k == DONE or _number(k) for k in value[1])


def _interval(value: Any) -> bool:
    """``[from, to]`` units of an input; to its end where it says None."""
    return is_list(value, 2) and _number(value[0]) and (value[1] is None or _number(value[1]))


_MIXED: dict[str, tuple[Test, Any]] = {
    "since": (_number, 0),
    "left": (_dict_of(_list_of(_list_of(_interval))), {}),
    "drawn": (_drawn, {}),
}
_ENTRY = _fields({"history": _list_of(_turn), "deal": _some(_deal), "lanes": _some(_list_of(_lane))})


def _entry(value: Any) -> bool:
    """A data epoch in progress; before it, what was left over of another."""
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
    """The data epochs in progress, by their number."""
    return _dict_of(_entry)(value) and all(k.isascii() and k.isdecimal() and len(k) < 19 for k in value)


def _marks(value: Any) -> bool:
    """Stamps and contents of runs of files, a text a run."""
    return is_list(value, 2) and all(map(_list_of(_text), value)) and len(value[0]) == len(value[1])


_STATE: dict[str, Test] = {
    "cedar": _number, "pipeline": _text, "sources": _list_of(_text), "code": _text, "seed": _seed,
    "split_batches": _flag, "steps": _some(_number), "epoch": _number, "step": _number, "rank": _number,
    "world": _number, "data": _number, "open": _open, "seen": _number, "check": _text, "skipped": _dict_of(_number),
    "begun": _fields({"step": _number, "data": _number, "open": _open}),
}  # fmt: skip


_OPTIONAL: dict[str, tuple[Test, Any]] = {  # and what stands for it
    "files": (_list_of(_some(_marks)), []), "counts": (_some(_text), None),
    "order": (lambda value: value == "any", "any"), "operators": (_list_of(_text), []),
    "listings": (_list_of(_some(_text)), []), "mix": (_dict_of(_weights), {}),
    "earlier": (_number, 0), "snapshots": (_list_of(_some(_seed)), []),
}  # fmt: skip


def fault_of(state: dict[str, Any]) -> str | None:
    """Why a state is none, or None if it is whole: which field is missing or holds what it cannot.

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
