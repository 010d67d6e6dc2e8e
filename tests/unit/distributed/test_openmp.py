"""Variables by which OpenMP takes fewer threads than a run's key says are refused before anything trains."""

import sys

import pytest

from pipeline import distributed
from pipeline.errors import InputError
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import run

_REFUSED = [("OMP_DYNAMIC", "TRUE"), ("OMP_MAX_ACTIVE_LEVELS", "0"), ("OMP_THREAD_LIMIT", "1")]
_PROGRAM = """
from pipeline.stages.harness import exit_codes
from pipeline import distributed
with exit_codes(), distributed.join_process_group(2):
    print("trains")
"""


@pytest.mark.parametrize(("name", "value"), _REFUSED)
def test_a_process_that_trains_refuses_fewer_threads(name: str, value: str) -> None:
    done = run([sys.executable, "-c", _PROGRAM], environ={name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert printed_error(done.stderr).key == name
    assert len(done.stderr.splitlines()) == 1
    assert f"{name}: {value} " in done.stderr
    assert done.stderr.endswith("; unset it\n")


@pytest.mark.parametrize(("name", "value"), _REFUSED[:2])
def test_a_function_that_other_programs_call_refuses_them(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="unset it"), distributed.alone_in_process():
        pass


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_DYNAMIC", " false"), ("OMP_MAX_ACTIVE_LEVELS", "1"), ("OMP_THREAD_LIMIT", "2"), ("OMP_THREAD_LIMIT", "x")],
)
def test_values_that_limit_nothing_are_accepted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """OpenMP ignores what it cannot read."""
    monkeypatch.setenv(name, value)
    distributed.check_openmp(2)
    if value == "2":
        with pytest.raises(InputError, match="below the 3 threads"):
            distributed.check_openmp(3)
