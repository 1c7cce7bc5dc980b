import pytest

import cedar
from cedar.core import extensions
from cedar.core.extensions import extension, register


def test_an_extension_is_a_module_that_is_imported_when_asked_for(monkeypatch):
    monkeypatch.setattr(extensions, "_modules", {})
    register("lake", "cedar.no_such_module")
    with pytest.raises(cedar.PipelineError, match="this needs cedar.no_such_module, which is not installed"):
        extension("lake.writing")
    register("lake", "json")
    assert extension("lake").loads("1") == 1
    assert extension("lake.decoder").JSONDecoder().decode("1") == 1


def test_an_import_that_fails_inside_an_extension_says_so_itself(monkeypatch, tmp_path):
    (tmp_path / "broken_extension.py").write_text("import a_library_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(extensions, "_modules", {"lake": "broken_extension"})
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        extension("lake")
