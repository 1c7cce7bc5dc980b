"""What all operators on images share: the chain that runs several of them as one kernel."""

from __future__ import annotations

from typing import ClassVar

from cedar.operators.chains import Chain
from cedar.operators.image.chain import IMAGES
from cedar.operators.transform import Transform


class ImageTransform(Transform):
    """An operator on a column of images; others (boxes, labels) may follow it."""

    per_row: ClassVar[bool] = True
    chain: ClassVar[Chain | None] = IMAGES
