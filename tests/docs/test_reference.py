"""Every public name has a docstring with an example that runs; the site makes its reference pages of the same list."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import cedar

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("public", ROOT / "docs" / "site" / "public.py")
assert SPEC is not None
assert SPEC.loader is not None
public = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(public)

NAMES = [(module, name) for module, names in public.public().items() for name in names]
REFUSED = {"group_by", "sort"}  # methods that only say what to do instead
PARTS = ("cedar.nn", "cedar.trainers", "cedar.recommendation", "cedar.simulate")  # a guide may have the example instead
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
GUIDES = "\n".join(block for page in (ROOT / "docs").glob("*.md") for block in BLOCK.findall(page.read_text()))


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_a_public_name_has_an_example(module, name):
    said = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
    if "replaces this function" in said:
        pytest.skip("it is deprecated")
    example = said.partition("Examples:\n")[2]
    assert ">>> " in example or (module in PARTS and re.search(rf"\b{name}\b", GUIDES))


@pytest.mark.parametrize("name", [name for name in dir(cedar.Pipeline) if not name.startswith("_")])
def test_a_method_of_a_pipeline_has_an_example(name):
    member = getattr(cedar.Pipeline, name)
    if inspect.isfunction(member) and name not in REFUSED:
        assert ">>> " in (inspect.getdoc(member) or "").partition("Examples:\n")[2]


def test_the_arguments_of_a_loader_are_all_described():
    described = inspect.getdoc(cedar.Pipeline.loader) or ""
    table = (ROOT / "docs" / "loader.md").read_text().partition("## Arguments")[2]
    names = [name for name in inspect.signature(cedar.Pipeline.loader).parameters if name != "self"]
    assert [name for name in names if f"`{name}`" not in table] == []
    arguments = described.partition("Args:\n")[2].partition("Raises:\n")[0].replace("rank, world:", "rank: world:")
    assert [name for name in names if f"{name}:" not in arguments] == []
