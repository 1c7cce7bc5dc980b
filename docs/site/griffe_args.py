"""``low, high: ...`` in a docstring's Args becomes an entry for each argument, as mkdocstrings wants it."""

from __future__ import annotations

import re
from typing import Any

import griffe

SHARED = re.compile(r"^(?P<indent> +)(?P<names>\w+(?:, \w+)+):(?P<text> .*(?:\n(?P=indent) +.*)*)", re.MULTILINE)


def each(found: re.Match[str]) -> str:
    return "\n".join(f"{found['indent']}{name}:{found['text']}" for name in found["names"].split(", "))


class SharedArguments(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SHARED.sub(each, obj.docstring.value)
