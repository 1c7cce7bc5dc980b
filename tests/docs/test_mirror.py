"""A module's tests are found by its name."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nearly_every_module_has_its_file_of_tests():
    modules = [path.relative_to(ROOT / "cedar") for path in (ROOT / "cedar").rglob("*.py") if path.name[:2] != "__"]
    without = [
        str(path)
        for path in modules
        if not (ROOT / "tests" / path.parent / f"test_{path.name.removeprefix('_')}").exists()
    ]
    assert len(without) <= len(modules) / 20, without
