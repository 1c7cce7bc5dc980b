"""The file format of a profile: JSON that diffs well. Every value is checked when the file is read."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

from cedar.profile.figures import Machine, OperatorProfile
from cedar.store.whole_files import write_whole

VERSION = 2
_FORMAT = "cedar profile"
_DIGITS = 5  # significant digits in a file; further digits are noise


def write(name: str, body: dict[str, Any], operators: dict[int, OperatorProfile]) -> None:
    """Write the file atomically; raise OSError if that fails."""
    listed = [{"ordinal": i, **asdict(figures)} for i, figures in sorted(operators.items())]
    document = {"format": _FORMAT, "version": VERSION, **body, "operators": listed}
    text = json.dumps(_rounded(document), indent=2, ensure_ascii=False)
    write_whole(name, f"{text}\n".encode(errors="backslashreplace"))  # file names may contain invalid Unicode


def read(name: str) -> dict[str, Any]:
    """Return the values that ``write`` saved, including "operators". Raise ValueError if the file is invalid."""
    with open(name, encoding="utf-8") as file:
        document = json.load(file, parse_constant=_reject_constant)
    if not isinstance(document, dict) or document.pop("format", None) != _FORMAT:
        raise ValueError(f'it does not begin with "format": "{_FORMAT}"')
    version = document.pop("version", None)
    if version != VERSION:
        raise ValueError(f"it has version {version!r}, but this cedar reads version {VERSION}")
    machine = checked(Machine, document.get("machine"), "machine")
    return {**document, "machine": machine, "operators": _operators(document.get("operators"))}


def _operators(listed: Any) -> dict[int, OperatorProfile]:
    if not isinstance(listed, list):
        raise ValueError("operators is not a list")  # noqa: TRY004 - the file is invalid, not the argument
    operators: dict[int, OperatorProfile] = {}
    for item in listed:
        ordinal = item.pop("ordinal", None) if isinstance(item, dict) else None
        if isinstance(ordinal, bool) or not isinstance(ordinal, int) or ordinal < 0 or ordinal in operators:
            raise ValueError(f"operators: ordinal {ordinal!r} is invalid or repeated")
        operators[ordinal] = checked(OperatorProfile, item, f"operator {ordinal}")
    return operators


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "dict[str, float]": (dict,),
    "dict[int, OperatorProfile]": (dict,),
    "Machine": (Machine,),
}


def checked(kind: Any, entry: Any, label: str) -> Any:
    """Build a dataclass from a dict with exactly its fields. Check types, and that numbers are finite and not negative.

    Raises:
        ValueError: a value is invalid; the message starts with ``label``.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{label} is missing")  # noqa: TRY004 - the file is invalid, not the argument
    known = {f.name: str(f.type) for f in fields(kind)}
    for name in sorted({*entry, *known}):
        if name not in known or name not in entry:
            raise ValueError(f"{label} has {'no' if name in known else 'an unknown'} {name!r}")
        value = entry[name]
        sized = known[name] == "dict[str, float]" and isinstance(value, dict)
        figures = [v if isinstance(v, (int, float)) else math.nan for v in value.values()] if sized else [value]
        if not isinstance(value, _TYPES[known[name]]) or not all(map(_is_sound, figures)):
            raise ValueError(f"{label}: {name} is {value!r}")
    if (entry.get("gil") or 0) > 1:
        raise ValueError(f"{label}: gil is {entry['gil']!r}")
    return kind(**entry)


def _is_sound(value: Any) -> bool:
    """Return False for negative or infinite numbers and for booleans, and True for all other values."""
    if isinstance(value, bool):
        return False
    return not isinstance(value, (int, float)) or (math.isfinite(value) and value >= 0)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a valid number")
