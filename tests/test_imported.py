"""Objects named `package.module:name`."""

import pytest

from rw.errors import ConfigError
from rw.imported import imported, imported_function, is_import_name


def test_an_object_is_found_by_its_name():
    assert imported("rw.types:NO_MODE", "number") == -1
    assert imported_function("rw.imported:imported", "thing") is imported


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a:b", True), ("a.b:c", True), ("a", False), ("a:", False), (":b", False), ("a.:b", False), ("a b:c", False)],
)
def test_the_form_of_a_name(name, is_one):
    assert is_import_name(name) is is_one
    if not is_one:
        with pytest.raises(ConfigError, match=r"advantage '.*' is not of the form 'package.module:name'"):
            imported(name, "advantage")


def test_what_cannot_be_loaded_is_named_with_a_hint(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"scorer 'no_such_module:f' cannot be loaded: .*PYTHONPATH"):
        imported("no_such_module:f", "scorer")
    with pytest.raises(ConfigError, match="cannot be loaded: module 'rw.types' has no attribute 'Nothing'"):
        imported("rw.types:Nothing", "scorer")
    with pytest.raises(ConfigError, match="has no attribute 'NO_MODES'; did you mean 'NO_MODE'"):
        imported("rw.types:NO_MODES", "scorer")
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'broken_module:f' cannot be loaded: ZeroDivisionError: division by zero"):
        imported("broken_module:f", "scorer")
    with pytest.raises(ConfigError, match="not a function but int"):
        imported_function("rw.types:NO_MODE", "scorer")
