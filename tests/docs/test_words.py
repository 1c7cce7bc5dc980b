"""The checker of docs/words.txt, which `make lint` runs."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def words():
    spec = importlib.util.spec_from_file_location("ci_words", ROOT / ".ci" / "words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_planted_word_is_reported_with_its_line_and_replacement(words, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A plain line.\nThe file is read " + "An" + "ew, by " + "whole " + "numbers.\n")
    dictionary = words.read(ROOT / "docs" / "words.txt")
    assert list(words.hits(page, dictionary)) == [
        f"{page}:2: An" + "ew -> again",
        f"{page}:2: whole " + "numbers -> integers",
    ]


def test_only_whole_words_count(words, tmp_path):
    page = tmp_path / "code.py"
    page.write_text("context = foretold_texts  # contexts\n")
    assert list(words.hits(page, {"texts": "strings", "told": "reported"})) == []


def test_the_dictionary_has_sixty_words_in_order(words):
    dictionary = list(words.read(ROOT / "docs" / "words.txt"))
    assert len(dictionary) >= 60
    assert sorted(dictionary) == dictionary


def test_no_word_is_used(words, capsys):
    assert words.main(words.PLACES) == 0, capsys.readouterr().out
