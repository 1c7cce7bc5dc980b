"""cedar.testing: its names, and what importing it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cedar
import cedar.testing


def test_its_names_are_there_and_importing_it_imports_little() -> None:
    assert all(callable(getattr(cedar.testing, name)) for name in cedar.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cedar.testing.nothing
    code = "import sys, cedar.testing; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
