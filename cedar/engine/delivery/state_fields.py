"""The fields of a state: validate them when it is loaded, and pack those that grow with numbers of ranks and sources.

A state is JSON from an untrusted source. Other code relies on the structure that this module checks. Of positions, it
checks only that they are nested lists of counts; ``Stream.fits`` checks whether a position exists in a pipeline.

In a state of more than 4 KiB, ``packed`` replaces ``open`` and ``begun``, with a number for each earlier rank and a
position for each source of a mix, and ``mix`` and ``ranks``, if present. It is ``[length, text]``, where ``text`` is
their JSON, compressed with Zstandard and encoded as base64, and ``length`` is the size of the JSON in bytes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cedar.core.numeric import NumericEnvironment
from cedar.core.stream import is_count, is_list
from cedar.engine.streams.lanes import DONE, END

SMALL = 4096  # maximum characters of a state that is not packed
PACKED = 4  # the version of states with ``packed``
_PACKED_FIELDS = ("open", "begun")
_PACKED_IF_PRESENT = ("mix", "ranks")  # present only in states with mixtures, and with positions of other ranks
_LEVEL = 19  # compression takes a few milliseconds for 100 KB, and the result is a quarter smaller than at level 3
_MAX_BYTES = 16 << 20  # limit for damaged lengths; enough for 4,096 ranks whose number changed 200 times
_MAX_DEPTH = 100  # maximum nesting of lists in a position
_MAX_SHOWN = 60


@dataclass(frozen=True)
class _Optional:
    """The shape of a value that may be None."""

    shape: Any


@dataclass(frozen=True)
class _Dict:
    """The shape of a dict from strings to values of one shape."""

    shape: Any


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape, which is a type or a test, or consists of other shapes.

    ``[a]`` is a list of any length, ``(a, b)`` a list of two values, and ``{"name": a}`` a dict with that field.
    """
    match shape:
        case type():
            return isinstance(value, shape)
        case _Optional(each):
            return value is None or _fits(value, each)
        case _Dict(each):
            return isinstance(value, dict) and all(isinstance(k, str) and _fits(v, each) for k, v in value.items())
        case dict():
            return isinstance(value, dict) and all(k in value and _fits(value[k], each) for k, each in shape.items())
        case list():
            return isinstance(value, (list, tuple)) and all(_fits(each, shape[0]) for each in value)
        case tuple():
            return is_list(value, len(shape)) and all(map(_fits, value, shape))
    return bool(shape(value))


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_at(value: Any, depth: int = 0) -> bool:
    """Check an operator's position: nested lists of counts and None."""
    if isinstance(value, (list, tuple)):
        return depth < _MAX_DEPTH and all(_is_at(inner, depth + 1) for inner in value)
    return value is None or is_count(value)


_POSITION = (_is_at, is_count)
_DEAL = ((is_count, _Optional(_POSITION), _Optional(is_count)), is_count)  # [[taken, position below, its unit], skip]
_WEIGHTS = ([_Optional(_is_real)], _Optional([_is_real]))  # as written, with None for a function; and set in the run
_INTERVAL = (is_count, _Optional(is_count))  # [from, to] of an input's units; ``to`` is None if it has no end


def _is_turn(value: Any) -> bool:
    """Check ``[world, chunk, units received by each rank]``."""
    return _fits(value, (is_count, is_count, [is_count])) and min(value[:2]) > 0 and len(value[2]) == value[0]


def _are_turns(value: Any) -> bool:
    """Check a list of ``[unit from which weights apply, weights]``, from the first unit on. The first may also have the
    positions in the inputs at which the mixture begins, with None for exhausted inputs.
    """
    if not value or not _fits(value, [lambda turn: is_list(turn, 2) or is_list(turn, 3)]):
        return False
    begins = value[0][2] if len(value[0]) == 3 else []
    turns = [value[0][:2], *value[1:]]
    return _fits(begins, [_Optional(_POSITION)]) and _fits(turns, [(is_count, [_is_real])]) and turns[0][0] == 0


def _is_lane(value: Any) -> bool:
    """Check a ``LaneState`` as a list."""
    drawn = is_list(value, 10) and _fits(value[9], _Dict(_are_turns))
    if not drawn and not is_list(value, 9):
        return False
    *numbers, history, position, keeps = value[:9]
    return (
        _fits(numbers, (is_count, is_count, is_count, _Optional(is_count), is_count, is_count))
        and numbers[0] < numbers[1]
        and numbers[4] < numbers[5]
        and _fits(history, [_is_turn])
        and (position == END or _fits(position, _Optional(_DEAL)))
        and ((keeps == END and position != END) or _fits(keeps, _Optional(is_count)))
    )


def _is_change(value: Any) -> bool:
    """Check ``[step, weights by input name, names of added inputs]``."""
    return _fits(value, (is_count, _Dict(_is_real), [str])) and {*value[2]} <= {*value[1]}


def _is_assignment(value: Any) -> bool:
    """Check ``[number of lanes, number of splits that each has started]``; see ``lanes.Past``."""
    started = (is_count, [lambda splits: splits == DONE or is_count(splits)])
    return _fits(value, started) and len(value[1]) == value[0] > 0


_MIXED = {"since": (is_count, 0), "left": (_Dict([[_INTERVAL]]), {}), "drawn": (_Dict(_are_turns), {})}
_ENTRY = {"history": [_is_turn], "deal": _Optional(_DEAL), "lanes": _Optional([_is_lane])}


def _is_entry(value: Any) -> bool:
    """Check the entry of a data epoch in progress, and of the previous epoch in it, if any."""
    for _ in range(_MAX_DEPTH):
        if not _fits(value, _ENTRY):
            return False
        if not all(_fits(value.get(name, default), shape) for name, (shape, default) in _MIXED.items()):
            return False
        past = value.get("past", [])
        if not _fits(past, [_is_assignment]) or any(lane[2] > len(past) for lane in value["lanes"] or ()):
            return False
        if value.get("before") is None:
            return True
        if not _fits(value["before"], {"epoch": is_count, "entry": dict}):
            return False
        value = value["before"]["entry"]
    return False


def _are_open(value: Any) -> bool:
    """Check a dict from data epoch numbers to their entries."""
    return _fits(value, _Dict(_is_entry)) and all(k.isascii() and k.isdecimal() and len(k) < 19 for k in value)


def _are_marks(value: Any) -> bool:
    """Check ``[stamps, content hashes]``, lists with one string for each run of files."""
    return _fits(value, ([str], [str])) and len(value[0]) == len(value[1])


_STATE: dict[str, Any] = {
    "cedar": is_count, "pipeline": str, "sources": [str], "code": str, "seed": _is_seed, "split_batches": bool,
    "steps": _Optional(is_count), "epoch": is_count, "step": is_count, "rank": is_count, "world": is_count,
    "data": is_count, "open": _are_open, "seen": is_count, "check": str, "skipped": _Dict(is_count),
    "begun": {"step": is_count, "data": is_count, "open": _are_open},
}  # fmt: skip
_IF_PRESENT: dict[str, Any] = {
    "files": [_Optional(_are_marks)], "counts": _Optional(str), "order": lambda value: value == "any",
    "operators": [str], "listings": [_Optional(str)], "mix": _Dict(_WEIGHTS), "earlier": is_count,
    "ranks": _Dict((is_count, is_count, _are_open)),  # positions of other ranks: step, data epoch, its open entries
    "snapshots": [_Optional(_is_seed)], "changes": [_is_change],
}  # fmt: skip


def fault_of(state: dict[str, Any]) -> str | None:
    """Return why a state is invalid, such as the field that is missing or has an invalid value; None if it is valid.

    Examples:
        >>> fault_of({"cedar": "1"})
        "'cedar' is '1'"
    """
    for name, shape in _STATE.items():
        if name not in state:
            return f"{name!r} is missing"
        if not _fits(state[name], shape):
            shown = repr(state[name])
            return f"{name!r} is {shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + '...'}"
    for name, shape in _IF_PRESENT.items():
        if name in state and not _fits(state[name], shape):
            return f"{name!r} has an invalid value"
    if state.get("numeric") is not None:
        try:
            NumericEnvironment.of_json(state["numeric"])
        except ValueError as error:
            return str(error)
    if state["rank"] >= state["world"]:
        return f"'rank' is {state['rank']} of {state['world']}"
    return None


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state, in packed form if it is large.

    Examples:
        >>> from cedar.engine.delivery.state_fields import packed, unpacked
        >>> state = {"cedar": 3, "open": {"0": [7, 8, 9] * 1000}, "begun": {}}
        >>> list(packed(state)), unpacked(packed(state)) == state | {"cedar": 4}
        (['cedar', 'packed'], True)
        >>> packed({"cedar": 3, "open": {}, "begun": {}})
        {'cedar': 3, 'open': {}, 'begun': {}}
    """
    if "packed" in state or not all(name in state for name in _PACKED_FIELDS) or len(json.dumps(state)) <= SMALL:
        return state
    names = [name for name in (*_PACKED_FIELDS, *_PACKED_IF_PRESENT) if name in state]
    text = json.dumps({name: state[name] for name in names}, separators=(",", ":")).encode()
    if len(text) > _MAX_BYTES:
        return state
    frame = pa.Codec("zstd", compression_level=_LEVEL).compress(text, asbytes=True)
    rest = {name: value for name, value in state.items() if name not in names}
    return rest | {"cedar": PACKED, "packed": [len(text), base64.b64encode(frame).decode()]}


def unpacked(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with the fields that ``packed`` contains. Its content is validated, since it is not trusted.

    Raises:
        ValueError: ``packed`` is invalid.
    """
    if "packed" not in state:
        return state
    value = state["packed"]
    if not is_list(value, 2) or type(value[0]) is not int or not isinstance(value[1], str):
        raise ValueError("'packed' is not [length, text]")
    length, text = value
    if not 0 < length <= _MAX_BYTES:
        raise ValueError(f"'packed' has an invalid length of {length} bytes")
    try:
        frame = base64.b64decode(text, validate=True)
        members = json.loads(pa.Codec("zstd").decompress(frame, length, asbytes=True))
    except (ValueError, OSError, RecursionError) as error:  # arrow raises OSError for invalid frames
        raise ValueError("'packed' cannot be read") from error
    if (
        not isinstance(members, dict)
        or {*members} - {*_PACKED_IF_PRESENT} != {*_PACKED_FIELDS}
        or any(name in state for name in members)
    ):
        raise ValueError("'packed' has invalid content")
    return {name: each for name, each in state.items() if name != "packed"} | members
