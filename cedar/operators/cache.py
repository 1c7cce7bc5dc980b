"""cache: stores the output of the deterministic part of a pipeline."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from cedar.core.block import Block
from cedar.core.errors import invalid_call
from cedar.core.printable import redact_url
from cedar.core.stream import Abstract
from cedar.operators.base import Bound, Effects, Env, Kernel, RowOperator, Schema


class StoresRows(Abstract):
    """An operator that stores its input rows for later epochs.

    Attributes:
        version: a version of the functions before it, used instead of a digest of their code and state.
        layout: whether the optimizer added it, with only the columns of this pipeline.
    """

    version: str | None = None
    layout: bool = False

    @property
    @abstractmethod
    def storage(self) -> str:
        """Where the rows are stored: "auto", "memory", a directory or a URL."""


@dataclass(frozen=True)
class Cache(RowOperator, StoresRows):
    """A hint to store the operator's input blocks in memory, or as Arrow files in a directory or under a URL.

    The cache never changes results: it stores the input of the first random operator, not its output. ``layout`` is
    True if the optimizer added it for ``Budget(layout=)``. See ``StoresRows`` for the other fields.
    """

    where: str = "auto"
    version: str | None = None
    layout: bool = False
    name = "cache"

    def __post_init__(self) -> None:
        if not isinstance(self.where, str) or not self.where:
            raise invalid_call(f"cache({self.where!r}): invalid location", fix='"memory", "auto", a directory or a URL')
        if self.version is not None and (not isinstance(self.version, str) or not self.version):
            raise invalid_call(f"cache(version={self.version!r}): a version is a string", fix='such as version="3"')

    def label(self) -> str:
        return f"{'layout' if self.layout else 'cache'}({redact_url(self.where)!r})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset())

    may_fail = False

    @property
    def storage(self) -> str:
        return self.where

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return _unchanged


def _unchanged(block: Block, _env: Env) -> Block:
    return block
