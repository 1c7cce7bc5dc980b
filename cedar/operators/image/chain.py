"""The chain of image operators: what runs several as one kernel (see ``engine``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cedar.core.columns import Column
from cedar.operators.chains import Fault, Link
from cedar.operators.draws import Draws


class ImageChain:
    """Image by image: decode, crop, resize and flip without a copy in between, then the pixels of all at once."""

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Those that go on with the same image; columns beside it (boxes, labels) go along."""
        from cedar.operators.image.decode import Decode

        return not isinstance(above.transform, Decode) and above.reads[0] == below[-1].writes[0] == above.writes[0]

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, Fault]]:
        from cedar.operators.image.engine import run

        return run(links, columns, draws)


IMAGES = ImageChain()
