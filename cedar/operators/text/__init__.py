"""Text transforms: normalize and tokenize strings, truncate lists of ids, and add special tokens.

``p.map(text.normalize(), "text").map(text.tokenize("tokenizer.json"), "text", into="ids").pack(2048, "ids")``. The ids
are those of the tokenizer; docs/text.md explains how cedar computes them faster.
"""

# ruff: noqa: N813 - users call these classes as functions

import warnings
from typing import Any

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.operators.text.byte_level import ByteLevel as byte_level
from cedar.operators.text.ends import SpecialTokens as special_tokens
from cedar.operators.text.ends import Truncate as truncate
from cedar.operators.text.normalize import Normalize as normalize
from cedar.operators.text.tokenize import Tokenize as tokenize

__all__ = ["byte_level", "normalize", "special_tokens", "tokenize", "truncate"]

_suggest(globals())

_RENAMED = ("normalize", "tokenize")  # British spellings of these names work until cedar 0.2


def __getattr__(name: str) -> Any:
    new = name.replace("ise", "ize")
    if new == name or new not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"text.{name} was renamed to text.{new}; the old name ends with cedar 0.2"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return globals()[new]
