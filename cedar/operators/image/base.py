"""What all operators on images share: the chain that runs several of them as one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from cedar.core.columns import Column
from cedar.operators.chains import Chain, ChainFault, Link
from cedar.operators.draws import Draws
from cedar.operators.transform import Transform


class ImageChain:
    """Image by image: decode, crop, resize and flip without a copy in between, then the pixels of all at once."""

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Those that continue with the same image; columns next to it (boxes, labels) go along."""
        from cedar.operators.image.decode import Decode

        return not isinstance(above.transform, Decode) and above.reads[0] == below[-1].writes[0] == above.writes[0]

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        from cedar.operators.image.engine import run

        return run(links, columns, draws)


IMAGES = ImageChain()


class ImageTransform(Transform):
    """An operator on a column of images; others (boxes, labels) may follow it."""

    per_row: ClassVar[bool] = True
    chain: ClassVar[Chain | None] = IMAGES
