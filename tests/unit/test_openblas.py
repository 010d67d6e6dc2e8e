"""NumPy and SciPy compute by the kernels for Haswell on every processor with AVX2, unless the user chose others."""

import os
import subprocess
import sys

import pytest

from pipeline import has_avx2
from tests.fixtures.projects import ROOT

_ASK = """
import pipeline, numpy, scipy.linalg, threadpoolctl
print(sorted({lib.get("architecture") for lib in threadpoolctl.threadpool_info() if lib["internal_api"] == "openblas"}))
"""

pytestmark = pytest.mark.skipif(not has_avx2(), reason="needs a processor with AVX2")


@pytest.mark.parametrize(("own", "kernels"), [({}, "Haswell"), ({"OPENBLAS_CORETYPE": "Nehalem"}, "Nehalem")])
def test_the_kernels_are_those_of_haswell_unless_chosen(own: dict[str, str], kernels: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env={**inherited, "PYTHONPATH": str(ROOT), **own},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"['{kernels}']\n"
