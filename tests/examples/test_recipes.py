"""Recipes: each runs, checks itself, says something, and is short."""

import ast
import importlib.util
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "recipes"
LINES = 40


def lines_of_code(text: str) -> int:
    """Lines that are neither blank, nor comments, nor imports, nor the docstring."""
    tree = ast.parse(text)
    left = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    docstring = [tree.body[0]] if ast.get_docstring(tree) else []
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in (*docstring, *imports):
        left -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(left)


def needs(text: str) -> set[str]:
    """The libraries that a recipe imports at its top."""
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch, about Lightning's code
@pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")  # Lightning's, of every run that resumes
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_it_runs_and_is_short(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = path.read_text()
    assert lines_of_code(text) <= LINES
    absent = [name for name in needs(text) if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"needs {', '.join(sorted(absent))}")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
