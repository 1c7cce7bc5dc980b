"""Install the wheel in an empty environment and run the README's ten lines as they stand: ``make dist``.

``check_wheel.py WHEEL`` makes a virtual environment of the Python that runs it, with the versions of constraints.txt;
``--newest`` takes the newest versions of the index instead. With ``--here`` it unpacks the wheel and takes the packages
of the Python that runs it, which is what the tests do.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LINES = re.compile(r"## Ten lines\n.*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_WHERE = "import cedar; print(cedar.__file__)"


def check(wheel: Path, here: bool, newest: bool) -> None:
    """Raises CalledProcessError, or AssertionError where another cedar was imported."""
    found = _LINES.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None, "README.md has no section 'Ten lines'"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python, environment = _unpacked(wheel, folder) if here else _installed(wheel, folder, newest)

        def run(*arguments: str) -> str:
            done = subprocess.run([python, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)
            return done.stdout.decode()

        where = run("-c", _WHERE).strip()
        assert Path(where).resolve().is_relative_to(folder.resolve()), f"imported {where}, not the wheel's"
        run("-m", "cedar", "data", "clicks", "clicks", "--rows", "2000")
        run("-c", found.group(1))
        version, number = run("-m", "cedar", "--version").strip(), sys.version.split()[0]
        print(f"{wheel.name}: the README's ten lines ran, on {version}, Python {number}")


def _installed(wheel: Path, folder: Path, newest: bool) -> tuple[str, dict[str, str]]:
    """An empty environment with the wheel and what it asks for."""
    venv.create(folder / "env", with_pip=True)
    python = str(folder / "env" / "bin" / "python")
    pins = [] if newest else ["-c", str(ROOT / "constraints.txt")]
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", *pins, f"{wheel}[torch]"]
    subprocess.run(install, check=True)
    return python, {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _unpacked(wheel: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """This Python's packages, and the wheel before them."""
    target = str(folder / "site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", target]
    subprocess.run([*install, str(wheel)], check=True)
    return sys.executable, os.environ | {"PYTHONPATH": target}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--newest", action="store_true")
    chosen = parser.parse_args()
    check(chosen.wheel.resolve(), chosen.here, chosen.newest)
