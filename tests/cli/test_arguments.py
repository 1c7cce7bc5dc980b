"""What arguments may be, and what help says of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cedar.cli import main
from cedar.cli.arguments import load_name


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "m:p", "--epochs", "0"],
        ["run", "m:p", "--limit-batches", "-1"],
        ["run", "m:p", "--workers", "two"],
        ["run", "m:p", "--seconds", "nan"],
        ["profile", "m:p", "--seconds", "0"],
        ["profile"],
        ["unknown"],
    ],
)
def test_wrong_arguments_end_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: cedar" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "profile", "run"])
def test_help_of_a_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"cedar {command} my_project.data:train" in capsys.readouterr().out


PIPELINE = """
from __future__ import annotations
import sys
from dataclasses import dataclass
import cedar

sys.path.insert(0, "library")

@dataclass
class Row:
    x: int

    def plus(self) -> int:
        import beside, of_library
        return plus(self.x, beside.ONE + of_library.TEN)

def plus(x, y):
    return x + y

def made(x):
    return Row(x).plus()

p = cedar.from_items([{"x": i} for i in range(4)]).map(made, "x", dtype="int64")
"""


@pytest.mark.parametrize("target", ["my_pipelines_for_cli:p", "my_pipelines_for_cli.py:p", "my_pipelines_for_cli:made"])
def test_explain_prints_the_plan(module, target, capsys):
    assert main(["explain", target]) == 0
    assert "filter" in capsys.readouterr().out


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no_colon", "does not name a pipeline"),
        ("no_such_module_here:p", "no_such_module_here cannot be imported"),
        ("no_such_file.py:p", "no_such_file.py cannot be imported"),
        ("my_pipelines_for_cli:mode", "has no 'mode'; it has made"),
        ("my_pipelines_for_cli:number", "is a int, not a Pipeline"),
        ("my_pipelines_for_cli:needs", "cannot be called without arguments"),
        ("my_pipelines_for_cli:raises", "raises() raised ZeroDivisionError: division by zero"),
        ("broken.py:p", "broken.py cannot be imported: NameError: name 'nothing' is not defined"),
        ("torn.py:p", "torn.py cannot be imported: SyntaxError"),
        ("ending.py:p", "ending.py cannot be imported: SystemExit: 0"),
        ("my_pipelines_for_cli:ends", "ends() raised SystemExit: 0"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "profile", "run"])
def test_a_wrong_target_is_named(module, tmp_path, command, target, said, capsys):
    (tmp_path / "broken.py").write_text("nothing")
    (tmp_path / "torn.py").write_text("def")
    (tmp_path / "ending.py").write_text("raise SystemExit(0)")
    assert main([command, target]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_file_runs_as_it_does_by_itself_and_its_functions_go_to_processes(module, tmp_path, executor):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "data.py").write_text(PIPELINE)
    (folder / "beside.py").write_text("ONE = 1")
    (tmp_path / "library").mkdir()
    (tmp_path / "library/of_library.py").write_text("TEN = 10")
    command = f"""if True:
        from cedar.cli import load_pipeline
        with load_pipeline("elsewhere/data.py:p").loader(executor={executor!r}, workers=1, plan="off") as loader:
            print(*(row["x"] for row in loader))"""
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout == "11 12 13 14\n"


def test_a_file_is_a_module_of_a_name_of_its_own_unless_it_fails(module, tmp_path, capsys):
    (tmp_path / "json.py").write_text("import cedar\nmade = cedar.from_items([])\ndef f():\n    return made")
    names = [sys.modules[load_name("json.py:f").__module__].f.__module__ for _ in range(2)]
    assert len({*names, "json"}) == 3
    (tmp_path / "json.py").write_text("raise ValueError")
    before = set(sys.modules)
    assert main(["explain", "json.py:f"]) == 1
    assert set(sys.modules) == before
