"""Importing any module changes no files, random generators, logging or working folder."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.source_tree import ROOT, modules, tree

_IMPORT_ALL = """
import importlib, logging, os, random, sys

import numpy as np
import openTSNE, sklearn.decomposition  # draws from `random` at import
import torch

def state():
    return {
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "logging": list(logging.getLogger().handlers),
        "folder": os.getcwd(),
        "path": list(sys.path),
    }

before = state()
for name in sys.argv[1:]:
    importlib.import_module(name)
after = state()
print([key for key in before if before[key] != after[key]])
print(sorted(os.listdir()))
"""


@pytest.mark.slow
def test_importing_everything_changes_nothing(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-B", "-c", _IMPORT_ALL, *modules()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "[]\n[]\n"
    assert answer.stderr == ""


def test_no_module_calls_anything_for_its_effect() -> None:
    """A bare call at the top of a module has an effect at import, which is too early."""
    for path in modules().values():
        for statement in tree(path).body:
            assert not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)), (
                f"{path.relative_to(ROOT)}:{statement.lineno}"
            )


def test_stages_without_a_network_import_no_torch() -> None:
    """It takes seconds to import."""
    stages = [f"pipeline.stages.{name}" for name in ("prepare", "reduce", "filter", "report")]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {stages}]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
