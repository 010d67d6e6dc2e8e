"""`import batchsieve`: light, complete, and with examples that run."""

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import batchsieve

_PACKAGE = Path(batchsieve.__file__).parent
_HEAVY = ("torch", "sklearn", "scipy", "numpy", "pandas", "plotly", "pyarrow", "pydantic", "dash", "faiss")


def _imported_after(code: str) -> set[str]:
    """Which of the heavy libraries a new process has imported after `code`."""
    listed = f"import sys; {code}; print(*(set({_HEAVY!r}) & sys.modules.keys()))"
    answer = subprocess.run(
        [sys.executable, "-c", listed], cwd=_PACKAGE.parent, capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


def test_import_needs_no_library() -> None:
    assert _imported_after("import batchsieve; dir(batchsieve); batchsieve.InputError") == set()


def test_functions_on_arrays_need_no_torch() -> None:
    assert "torch" not in _imported_after(
        "import batchsieve; [batchsieve.find_issues, batchsieve.compare_runs, batchsieve.sieve]"
    )


def test_every_public_name_is_there() -> None:
    assert {"find_issues", "sieve", "compare_runs", "load_trained"} <= set(batchsieve.__all__) <= set(dir(batchsieve))
    for name in batchsieve.__all__:
        assert getattr(batchsieve, name).__doc__, name
    assert batchsieve.load_trained is importlib.import_module("pipeline.training.weights").load_trained
    with pytest.raises(AttributeError, match="no_such"):
        batchsieve.no_such  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    """Those imported under TYPE_CHECKING, from the same modules."""
    block = next(node for node in ast.parse((_PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == batchsieve._MODULES
    assert set(seen) == set(batchsieve.__all__)


@pytest.mark.parametrize("name", ["issues", "filtering", "comparison"])
def test_examples_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"batchsieve.{name}"), optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


_WITHOUT_EXTRAS = """
import sys
for name in ("dask", "distributed", "dvc", "faiss", "jinja2", "matplotlib", "openTSNE", "pandas", "plotly", "shtab"):
    sys.modules[name] = None
import batchsieve
accuracies = {seed: 0.9 + seed / 1000 for seed in range(6)}
others = {seed: 0.8 - seed / 1000 for seed in range(6)}
issues = batchsieve.find_issues([0, 1, 1], pred_probs=[[0.9, 0.1], [0.2, 0.8], [0.9, 0.1]])
print(batchsieve.compare_runs(accuracies, others, margin=0.01).outcome, issues.is_issue.tolist())
"""


def test_probabilities_and_verdicts_need_no_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS], cwd=_PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("helps [False, False, True]\n", "")
