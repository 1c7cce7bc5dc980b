"""The navigation of the site: every page is in it once, and none but those of the reference is long."""

import json
import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: it comes with dask")
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_WORDS = 1500
WORD = re.compile(r"\S*\w\S*")  # not the bars of tables


def navigation():
    text = re.sub(r"!!python\S*", "", (ROOT / "mkdocs.yml").read_text())
    return yaml.safe_load(text)["nav"]


def pages(item):
    if isinstance(item, str):
        yield item
    for each in item if isinstance(item, list) else item.values() if isinstance(item, dict) else ():
        yield from pages(each)


def test_every_page_is_in_the_navigation_once():
    listed = [page for page in pages(navigation()) if (DOCS / page).exists()]
    assert len(set(listed)) == len(listed)
    assert set(listed) == {page.name for page in DOCS.glob("*.md")}


def test_pages_outside_the_reference_are_short():
    reference = set(pages([each["Reference"] for each in navigation() if "Reference" in each]))
    words = {str(page.relative_to(DOCS)): len(WORD.findall(page.read_text())) for page in DOCS.rglob("*.md")}
    assert {page: count for page, count in words.items() if count > MOST_WORDS and page not in reference} == {}


def test_every_recipe_is_in_one_group():
    groups = json.loads((DOCS / "site" / "recipes.json").read_text())
    listed = [name for names in groups.values() for name in names]
    assert len(set(listed)) == len(listed)
    missing = {path.stem for path in (ROOT / "examples" / "recipes").glob("*.py")} - set(listed)
    assert missing == set(), "add them to docs/site/recipes.json"
