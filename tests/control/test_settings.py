"""The constants of the controller: few, and each told."""

from __future__ import annotations

import dataclasses

from cedar.control.settings import ControllerSettings


def test_there_are_a_dozen_constants_at_most() -> None:
    fields = dataclasses.fields(ControllerSettings)
    assert len(fields) <= 12
    for each in fields:
        assert f"        {each.name}: " in (ControllerSettings.__doc__ or ""), "its unit, and why"
