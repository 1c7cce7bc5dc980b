"""The distribution's name: ``cedar`` on an index is another project's, so no message may tell users to install it."""

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_no_message_or_page_installs_the_other_project():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name.endswith((".py", ".md", ".cfg", ".toml"))]
    other = re.compile(r"(?:pip install [\"']?|[\"'\s`])cedar(?:\[[a-z]|\s*[=<>~]=)")
    wrong = [f"{path}: {hit}" for path in files if path.exists() for hit in other.findall(path.read_text("utf-8"))]
    assert not wrong


def test_the_distribution_has_a_free_name_and_the_import_stays():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["name"] == "cedar-data"
    assert "cedar-data[" in setup["options.extras_require"]["all"]
    assert (ROOT / "cedar" / "__init__.py").exists()


@pytest.mark.heavy
def test_a_wheel_runs_the_ten_lines_of_the_readme(tmp_path):
    """Built from a copy: what earlier builds left in the tree would get into it."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "cedar", source / "cedar", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "-w", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("cedar_data-*.whl")
    check = [sys.executable, str(ROOT / ".ci" / "check_wheel.py"), "--here", str(wheel)]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "ten lines ran" in done.stdout
