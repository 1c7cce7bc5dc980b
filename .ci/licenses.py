"""Write docs/licenses.md from what is installed: ``make sbom``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "licenses.md"
_HEAD = """# Licenses

What `make venv` installs, and under which terms: made by `make sbom`, which also writes `dist/sbom.json` (CycloneDX).
The core needs what `install_requires` in setup.cfg lists; the rest are extras, what these need, and tools for
development. None is copied into cedar, whose own license is Apache-2.0.

| package | version | license |
|---|---|---|
"""


def main(tool: str, python: str) -> None:
    command = [tool, f"--python={python}", "--format=json", "--order=name"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows = [
        f"| {each['Name']} | {each['Version']} | {each['License'].splitlines()[0].strip()} |\n"
        for each in sorted(found, key=lambda each: each["Name"].lower())
        if each["Name"] != "cedar-data"
    ]
    PAGE.write_text(_HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
