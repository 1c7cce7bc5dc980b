"""Transforms of texts: to one form, to ids, to a length, with special tokens.

``p.map(text.normalise(), "text").map(text.tokenise("tokenizer.json"), "text", into="ids").pack(2048, "ids")``. The ids
are those of the tokenizer; docs/text.md tells how they come faster.
"""

# ruff: noqa: N813 - written as functions are

from cedar.operators.text.byte_level import ByteLevel as byte_level
from cedar.operators.text.ends import SpecialTokens as special_tokens
from cedar.operators.text.ends import Truncate as truncate
from cedar.operators.text.normalise import Normalise as normalise
from cedar.operators.text.tokenise import Tokenise as tokenise

__all__ = ["byte_level", "normalise", "special_tokens", "tokenise", "truncate"]
