"""``cedar simulate``: what the command prints of a file, and what it refuses."""

from pathlib import Path

import pytest

from cedar.simulate import forecast

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "clusters"


@pytest.mark.heavy
def test_the_example_of_checkpoints_is_a_configuration():
    found = forecast(str(EXAMPLES / "checkpoints.toml"), ["run.draws=2"])
    assert [name for _, name, _, _ in found.effective[:4]] == ["dense", "checkfreq", "gemini", "moevement"]
    assert not found.survivals
