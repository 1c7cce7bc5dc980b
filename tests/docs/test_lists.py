"""Pages that list things list all of them: extras, environment variables; and the notebook is made of its page."""

import configparser
import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path

from cedar.core.limits import Limits, variable

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_page_on_installing_lists_every_extra():
    made = configparser.ConfigParser()
    made.read(ROOT / "setup.cfg")
    page = (DOCS / "install.md").read_text()
    assert [extra for extra in made["options.extras_require"] if f"`{extra}`" not in page] == []


def test_every_environment_variable_has_a_line():
    named = {variable(each.name) for each in fields(Limits)}
    for path in (ROOT / "cedar").rglob("*.py"):
        named |= set(re.findall(r"\bCEDAR_[A-Z_]+[A-Z]\b", path.read_text()))
    page = (DOCS / "environment.md").read_text()
    assert {name for name in named if f"`{name}`" not in page} == {"CEDAR_MAX"} & named


def test_the_notebook_is_the_page():
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "site" / "notebook.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page, kept = (DOCS / "quickstart.md").read_text(), (DOCS / "quickstart.ipynb").read_text()
    assert kept == made.notebook(page), "run: python docs/site/notebook.py"
    code = ["".join(cell["source"]) for cell in json.loads(kept)["cells"] if cell["cell_type"] == "code"]
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [each.strip() for each in code if each[0] != "!"] == [each.strip() for each in blocks]
