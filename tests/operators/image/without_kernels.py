"""What an operator makes with kernels, and without."""

from __future__ import annotations

import pytest


def both(module, make):
    """What a call makes with kernels, and without."""
    found = [make()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compiled", lambda name: None)
        found.append(make())
    return found
