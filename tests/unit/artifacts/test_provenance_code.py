"""The import closure finds what runs, and the digest changes with what computes."""

from pathlib import Path

import pytest

from pipeline.artifacts import provenance
from pipeline.artifacts.provenance import code_digest, import_closure


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """a imports b and, in a function, the package c's module d; b imports e; f is imported by none."""
    files = {
        "pipeline/__init__.py": '"""Top."""\n',
        "pipeline/a.py": "import json\nfrom pipeline.b import B\ndef run():\n    from pipeline.c import d\n",
        "pipeline/b.py": "import pipeline.e\nB = 1\n",
        "pipeline/c/__init__.py": "",
        "pipeline/c/d.py": '"""D."""\n\nX: int = 1\n"""Of X."""\n\ndef f(x):\n    """F."""\n    return x\n',
        "pipeline/e.py": "from pipeline.b import B\n",
        "pipeline/f.py": "",
        "elsewhere.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(provenance, "_PROJECT", tmp_path)
    return tmp_path


def test_closure_follows_modules_packages_functions_and_circles(project: Path) -> None:
    closure = import_closure("pipeline.a")
    assert list(closure) == [
        "pipeline",
        "pipeline.a",
        "pipeline.b",
        "pipeline.c",
        "pipeline.c.d",
        "pipeline.e",
    ]
    assert closure["pipeline.c.d"] == project / "pipeline/c/d.py"
    assert closure["pipeline.c"] == project / "pipeline/c/__init__.py"


def test_passive_modules_take_with_them_what_they_alone_import(project: Path) -> None:
    assert "pipeline.e" not in import_closure("pipeline.a", exclude=frozenset({"pipeline.b"}))
    assert "pipeline.b" in import_closure("pipeline.a", exclude=frozenset({"pipeline.e"}))


def test_modules_of_others_are_not_followed(project: Path) -> None:
    assert import_closure("json") == {}
    assert import_closure("pipeline.no_such_module") == {}


@pytest.mark.parametrize(
    ("module", "exclude"),
    [
        ("pipeline.renamed", ()),
        ("json", ()),
        ("pipeline.a", ("pipeline.renamed",)),
        ("pipeline.a", ("pipeline.b", "b")),
    ],
)
def test_names_without_a_module_are_an_error(project: Path, module: str, exclude: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match=r"renamed|json|'b'"):
        code_digest(module, exclude=frozenset(exclude))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pipeline/c/d.py", '"""D."""', '"""Another."""'),
        ("pipeline/c/d.py", '    """F."""\n', ""),
        ("pipeline/c/d.py", '"""Of X."""', '"""Said again."""'),
        ("pipeline/c/d.py", "    return x", "    # why\n\n    return x"),
        ("pipeline/c/d.py", "return x", "return (x)"),
        ("pipeline/f.py", "", "Y = 1\n"),
    ],
)
def test_words_and_unrelated_code_leave_the_digest_alone(project: Path, file: str, old: str, new: str) -> None:
    before = code_digest("pipeline.a")
    path = project / file
    path.write_text(path.read_text().replace(old, new, 1))
    assert code_digest("pipeline.a") == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pipeline/c/d.py", "return x", "return -x"),
        ("pipeline/c/d.py", "X: int = 1", "X: int = 2"),
        ("pipeline/b.py", "B = 1", 'B = "1"'),
        ("pipeline/__init__.py", '"""Top."""', "Z = 1"),
    ],
)
def test_code_that_computes_changes_the_digest(project: Path, file: str, old: str, new: str) -> None:
    before = code_digest("pipeline.a")
    path = project / file
    path.write_text(path.read_text().replace(old, new, 1))
    assert code_digest("pipeline.a") != before


def test_moving_code_to_another_module_changes_the_digest(project: Path) -> None:
    before = code_digest("pipeline.a")
    (project / "pipeline/c/d.py").rename(project / "pipeline/c/g.py")
    path = project / "pipeline/a.py"
    path.write_text(path.read_text().replace("import d", "import g as d"))
    assert code_digest("pipeline.a") != before


def test_closure_of_this_project_is_not_empty() -> None:
    closure = import_closure("pipeline.config.params")
    assert {"pipeline.errors", "pipeline.config.base"} <= set(closure)
