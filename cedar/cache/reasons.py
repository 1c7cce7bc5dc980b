"""Records of what a store's entries were computed from. They explain why an entry is missing."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import Any

from cedar.cache.fingerprints import Record
from cedar.store.entry import Damaged
from cedar.store.place import Place

RECORD = "-" + "0" * 16  # suffix of the name of a group's record
_MAX_RECORDS = 64  # maximum number of records to compare
_MAX_CHARACTERS = 2000  # maximum characters of an explanation


def as_json(record: Record, group: str, data: str, policy: str) -> dict[str, Any]:
    """Return a record, with the other parts of the entries' keys, as JSON."""
    return asdict(record) | {"group": group, "data": data, "policy": policy}


def remember(place: Place, record: dict[str, Any]) -> None:
    """Save a record with the entries of its group. Raises OSError."""
    place.put(record["group"] + RECORD, lambda _: record, {})


def recall(place: Place) -> list[dict[str, Any]]:
    """Return the latest records, newest last, without damaged ones."""
    found = sorted((each for each in place.entries() if each.name.endswith(RECORD)), key=lambda each: each.used)
    records = []
    for each in found[-_MAX_RECORDS:]:
        with contextlib.suppress(OSError, Damaged):
            if (entry := place.get(each.name, {})) is not None:
                records.append(entry.about)
    return records


def why_missing(records: list[dict[str, Any]], record: dict[str, Any]) -> str:
    """Explain why no entry of a store matches: list the differences from the most similar record."""
    record = json.loads(json.dumps(record))
    if not records:
        return "nothing is kept there yet"
    if any(known.get("group") == record["group"] for known in records):
        return "what was kept there was removed, or made room for others"
    differences = [_differences(known, record) for known in records]
    nearest = min(reversed(differences), key=len)
    if len(nearest) > max(3, len(record["operators"])):
        return "what is kept there comes from other pipelines"
    text = "".join(c if c.isprintable() else "?" for c in "; ".join(nearest))  # a record may contain anything
    return text[:_MAX_CHARACTERS]


def _differences(known: dict[str, Any], record: dict[str, Any]) -> list[str]:
    try:
        return [*_operator_changes(known["operators"], record["operators"]), *_other_changes(known, record)]
    except (KeyError, TypeError, AttributeError):
        return ["its record cannot be read"] * _MAX_RECORDS


def _operator_changes(known: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    if [o["label"] for o in known] != [o["label"] for o in now]:
        old, new = {o["label"] for o in known}, {o["label"] for o in now}
        news = [f"{', '.join(sorted(n))} is {how}" if n else "" for n, how in ((new - old, "new"), (old - new, "gone"))]
        several = len(old ^ new) or 1
        return [" and ".join(w for w in news if w) or "the operators are in another order"] * several
    changes = []
    for before, after in zip(known, now, strict=True):
        label = after["label"]
        if before["parameters"] != after["parameters"]:
            changes.append(f"the parameters of {label} changed")
        names = sorted(n for n in {*before["code"], *after["code"]} if before["code"].get(n) != after["code"].get(n))
        changes += [f"the {_part_text(name)} of {label} changed" for name in names]
    return changes


def _part_text(part: str) -> str:
    kind, _, name = part.partition(" ")
    if kind == "closure":
        return f"value of {name!r}, which the function closes over,"
    return f"global {name!r}" if kind == "global" else part


def _other_changes(known: dict[str, Any], now: dict[str, Any]) -> list[str]:
    changes = ["the data changed (other files, sizes or times of change)"] if known["data"] != now["data"] else []
    before, after = known["versions"], now["versions"]
    changes += [f"{name} was {before.get(name)}, is {after[name]}" for name in after if before.get(name) != after[name]]
    if known["policy"] != now["policy"]:
        changes.append("on_error changed")
    if known.get("inputs", []) != now["inputs"]:
        changes.append("the operators are connected in another way")
    if known["physical"] != now["physical"]:
        changes.append("the plan computes it in another way")
    return changes
