"""Which operators run as one kernel."""

from __future__ import annotations

from cedar.operators import image
from cedar.operators.image.base import IMAGES
from cedar.operators.transform import Link


def test_what_joins():
    decode = Link(image.decode(), ("bytes",), ("image",))
    flip = Link(image.horizontal_flip(), ("image",), ("image",))
    assert IMAGES.joins([decode], flip)
    assert IMAGES.joins([decode, flip], flip)
    assert not IMAGES.joins([decode], Link(image.horizontal_flip(), ("image",), ("view",)))  # the image stays
    assert not IMAGES.joins([decode], Link(image.horizontal_flip(), ("other",), ("other",)))
    assert not IMAGES.joins([flip], decode)
