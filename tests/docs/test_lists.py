"""Pages that list things list all of them: extras, environment variables; and the notebook is made of its page."""

import ast
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


def shown(path):
    """String constants of a module but for docstrings: what a message or a help may say."""
    tree = ast.parse(path.read_text())
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def test_messages_name_no_file_that_a_wheel_lacks():
    said = {str(path.relative_to(ROOT)): shown(path) for path in (ROOT / "cedar").rglob("*.py")}
    assert [(path, text) for path, texts in said.items() for text in texts if "docs/" in text] == []


def test_the_notebook_is_the_page():
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "site" / "notebook.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page, kept = (DOCS / "quickstart.md").read_text(), (DOCS / "quickstart.ipynb").read_text()
    assert kept == made.notebook(page), "run: python docs/site/notebook.py"
    code = ["".join(cell["source"]) for cell in json.loads(kept)["cells"] if cell["cell_type"] == "code"]
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [each.strip() for each in code if each[0] != "!"] == [each.strip() for each in blocks]
