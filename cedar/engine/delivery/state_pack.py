"""Packed states: compress the parts of a large state that grow with the numbers of ranks and sources.

``open`` and ``begun`` contain a number for each earlier rank and a position for each source of a mix; ``mix`` and
``ranks``, if present, contain weights and the positions of other ranks. In a state of more than 4 KiB, ``packed``
replaces them: ``[length, text]``, where ``text`` is their JSON, compressed with Zstandard and encoded as base64, and
``length`` is the size of the JSON in bytes.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from cedar.core.stream import is_list

SMALL = 4096  # maximum characters of a state that is not packed
PACKED = 4  # the version of states with ``packed``
_NAMES = ("open", "begun")
_OPTIONAL = ("mix", "ranks")  # present only in states with mixtures, and with positions of other ranks
_LEVEL = 19  # compression takes a few milliseconds for 100 KB, and the result is a quarter smaller than at level 3
_MAX_BYTES = 16 << 20  # limit for damaged lengths; enough for 4,096 ranks whose number changed 200 times


def packed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state, in packed form if it is large.

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
    names = [name for name in (*_NAMES, *_OPTIONAL) if name in state]
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
        or {*members} - {*_OPTIONAL} != {*_NAMES}
        or any(name in state for name in members)
    ):
        raise ValueError("'packed' has invalid content")
    return {name: each for name, each in state.items() if name != "packed"} | members
