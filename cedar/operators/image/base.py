"""The base class of all image operators, and the chain that runs several operators together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from cedar.core.columns import Column
from cedar.operators.draws import Draws
from cedar.operators.transform import Chain, ChainFault, Link, Transform


class ImageChain:
    """Decodes, crops, resizes and flips images without intermediate copies, then changes all pixels in one pass."""

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Return whether ``above`` reads and writes the same image column, so that it can join the chain ``below``."""
        from cedar.operators.image.decode import Decode

        return not isinstance(above.transform, Decode) and above.reads[0] == below[-1].writes[0] == above.writes[0]

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        from cedar.operators.image.engine import run

        return run(links, columns, draws)


IMAGES = ImageChain()


class ImageTransform(Transform):
    """Base class of operators on an image column; they may also read and write columns of boxes and labels."""

    per_row: ClassVar[bool] = True
    chain: ClassVar[Chain | None] = IMAGES
