"""Packed states: what grows with ranks and sources in a state, compressed where it would make the state a large one.

``open`` and ``begun`` hold a number for each rank before a change, and a position for each source of a mix; ``mix``, if
there is one, its weights. A state of more than 4 KiB has ``packed`` instead of these: ``[length, text]``, where
``text`` is the base64 of the Zstandard frame of their JSON, and ``length`` the bytes of that JSON.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from cedar.core.stream import is_list

SMALL = 4096  # characters that a state may have as it is
PACKED = 4  # the version of states with ``packed``
_NAMES = ("open", "begun")
_ALSO = "mix"  # of a state with mixtures
_LEVEL = 19  # some milliseconds for 100 KB, and a quarter less than level 3 leaves of it
_MOST = 16 << 20  # bytes: 4,096 ranks that changed 200 times; a few bytes of damage must not fill the memory


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """The state, with ``packed`` if it would be a large one.

    Examples:
        >>> from cedar.engine.delivery.state_pack import packed, unpacked
        >>> state = {"cedar": 3, "open": {"0": [7, 8, 9] * 1000}, "begun": {}}
        >>> list(packed(state)), unpacked(packed(state)) == state | {"cedar": 4}
        (['cedar', 'packed'], True)
        >>> packed({"cedar": 3, "open": {}, "begun": {}})
        {'cedar': 3, 'open': {}, 'begun': {}}
    """
    if "packed" in state or not all(name in state for name in _NAMES) or len(json.dumps(state)) <= SMALL:
        return state
    names = [name for name in (*_NAMES, _ALSO) if name in state]
    text = json.dumps({name: state[name] for name in names}, separators=(",", ":")).encode()
    if len(text) > _MOST:
        return state
    frame = pa.Codec("zstd", compression_level=_LEVEL).compress(text, asbytes=True)
    rest = {name: value for name, value in state.items() if name not in names}
    return rest | {"cedar": PACKED, "packed": [len(text), base64.b64encode(frame).decode()]}


def unpacked(state: dict[str, Any]) -> dict[str, Any]:
    """The state without ``packed``, which anyone may have written.

    Raises:
        ValueError: what is wrong with ``packed``.
    """
    if "packed" not in state:
        return state
    value = state["packed"]
    if not is_list(value, 2) or type(value[0]) is not int or not isinstance(value[1], str):
        raise ValueError("'packed' is not [length, text]")
    length, text = value
    if not 0 < length <= _MOST:
        raise ValueError(f"'packed' is of {length} bytes")
    try:
        frame = base64.b64decode(text, validate=True)
        members = json.loads(pa.Codec("zstd").decompress(frame, length, asbytes=True))
    except (ValueError, OSError, RecursionError) as error:  # what arrow cannot decompress is an OSError
        raise ValueError("'packed' cannot be read") from error
    if not isinstance(members, dict) or {*members} - {_ALSO} != {*_NAMES} or any(name in state for name in members):
        raise ValueError("'packed' holds what it cannot")
    return {name: each for name, each in state.items() if name != "packed"} | members
