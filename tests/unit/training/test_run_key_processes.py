"""Two runs have one key only if they end in the same bits, for any environment of their processes."""

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.training import run

SCRIPT = Path(__file__).with_name("run_key_process.py")
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
VARIABLES = [
    *AVX2.items(),
    ("DNNL_MAX_CPU_ISA", "AVX2"),  # the name of oneDNN's variable before version 2
    ("ONEDNN_MAX_CPU_ISA", "SSE41"),
    ("ONEDNN_MAX_CPU_ISA", "no such set"),
    ("ATEN_CPU_CAPABILITY", "default"),
    ("MKL_CBWR", "COMPATIBLE"),
    ("MKL_CBWR", "AVX2"),
]


@cache
def trained(threads: int = 1, **environ: str) -> Mapping[str, Any]:
    """Key, machine and bits of a process with these variables."""
    path = str(SCRIPT.parents[3])
    done = run([sys.executable, str(SCRIPT), str(threads)], environ={"PYTHONPATH": path, **environ}, fresh=True)
    assert done.returncode == 0, done.stderr
    result: Mapping[str, Any] = json.loads(done.stdout)
    return result


def assert_keys_tell(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Other bits have another key. Which variables change bits depends on the processor."""
    assert one["bits"] == other["bits"] or one["key"] != other["key"]


@pytest.mark.slow
def test_threads_of_a_process_are_in_its_key() -> None:
    one, two = trained(), trained(threads=2)
    assert_keys_tell(one, two)
    assert one["key"] != two["key"]
    assert {**one["machine"], "threads": 2} == two["machine"]


def test_the_key_names_avx512_where_it_changes_bits() -> None:
    assert_keys_tell(trained(), trained(**AVX2))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_key_has_each_variable_that_changes_bits(name: str, value: str) -> None:
    assert_keys_tell(trained(), trained(**{name: value}))


@pytest.mark.slow
def test_the_same_environment_has_the_same_key_and_bits() -> None:
    assert trained() == trained.__wrapped__()


@pytest.mark.slow
def test_what_a_library_does_not_know_or_cannot_do_is_no_other_key() -> None:
    """A set of instructions that oneDNN ignores, and its word for no limit."""
    for value in ("no such set", "DEFAULT"):
        assert trained(ONEDNN_MAX_CPU_ISA=value) == trained()
