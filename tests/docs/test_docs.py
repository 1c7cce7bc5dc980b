"""Every Python block of README.md and docs/*.md runs; the blocks of a page share their names, as a reader expects."""

import re
from pathlib import Path

import pytest

from cedar.datasets.clicklog import write_sessions

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
PICTURE = re.compile(r"^!\[.*\n", re.MULTILINE)


def blocks(page):
    """The code of a page with the line that each block begins at."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1)


@pytest.fixture(scope="session")
def click_log(tmp_path_factory):
    """2,000 rows: what the pages find as clicks/*.parquet."""
    folder = tmp_path_factory.mktemp("docs") / "clicks"
    write_sessions(str(folder), rows=2000, seed=0)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_page(page, click_log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks").symlink_to(click_log, target_is_directory=True)
    names = {"__name__": "__page__"}
    for line, code in blocks(page):
        padded = "\n" * line + code  # so that an error names the page's own line
        exec(compile(padded, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def anchors(page):
    """Of the headings of a page, as the site makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"\]\([^)]*\)", "", title) for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_links_lead_to_headings(page):
    for target, anchor in ANCHOR.findall(page.read_text(encoding="utf-8")):
        assert anchor in anchors(page.parent / target if target else page), f"{page.name} links to {target}#{anchor}"


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(LINK.findall(PICTURE.sub("", index)))
    assert listed == {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}
