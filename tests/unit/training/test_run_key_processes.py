"""Two runs have one key only if they end in the same bits, for any environment of their processes."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.projects import NETWORK, ROOT
from tests.fixtures.slow import quick_first
from tests.fixtures.training import environment

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


class KeyProcess:
    """A process whose forks train, see run_key_process.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._known: dict[str, Mapping[str, Any]] = {}

    def known(
        self, environ: Mapping[str, str] | None = None, *, threads: int = 1, network: str = NETWORK
    ) -> Mapping[str, Any]:
        """Return the same as `run`, which runs once for each environment."""
        words = json.dumps([threads, environ or {}, network])
        if words not in self._known:
            self._known[words] = self.run(environ, threads=threads, network=network)
        return self._known[words]

    def run(
        self, environ: Mapping[str, str] | None = None, *, threads: int = 1, network: str = NETWORK
    ) -> Mapping[str, Any]:
        """Return key, machine and bits of a process with these variables."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([threads, environ or {}, network]) + "\n")
        self._process.stdin.flush()
        result: Mapping[str, Any] = json.loads(self._process.stdout.readline())
        assert result, "failed"
        return result


@contextmanager
def _trainer(**environ: str) -> Iterator[KeyProcess]:
    variables = {**environment(), "PYTHONPATH": str(ROOT), **environ}
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield KeyProcess(process)


@pytest.fixture(scope="module")
def trainer() -> Iterator[KeyProcess]:
    with _trainer() as started:
        yield started


def assert_keys_tell(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Other bits have another key. Which variables change bits depends on the processor."""
    assert one["bits"] == other["bits"] or one["key"] != other["key"]


@pytest.mark.parametrize("network", quick_first(1, ["small_cnn", NETWORK]))
def test_threads_of_a_process_are_in_its_key(trainer: KeyProcess, network: str) -> None:
    one, two = trainer.known(network=network), trainer.known(threads=2, network=network)
    assert_keys_tell(one, two)
    assert one["key"] != two["key"]
    assert {**one["machine"], "threads": 2} == two["machine"]


@pytest.mark.slow
def test_the_key_names_avx512_where_it_changes_bits(trainer: KeyProcess) -> None:
    assert_keys_tell(trainer.known(), trainer.known(AVX2))


@pytest.mark.slow
@pytest.mark.parametrize("environ", [AVX2, {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}])
def test_variables_reach_a_fork_as_a_process_that_starts_with_them(
    environ: Mapping[str, str], trainer: KeyProcess
) -> None:
    with _trainer(**environ) as with_variables:
        assert with_variables.run() == trainer.known(environ)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_key_has_each_variable_that_changes_bits(name: str, value: str, trainer: KeyProcess) -> None:
    assert_keys_tell(trainer.known(), trainer.known({name: value}))


@pytest.mark.slow
def test_the_same_environment_has_the_same_key_and_bits(trainer: KeyProcess) -> None:
    assert trainer.known() == trainer.run()


@pytest.mark.slow
def test_what_a_library_does_not_know_or_cannot_do_is_no_other_key(trainer: KeyProcess) -> None:
    """A set of instructions that oneDNN ignores, and its word for no limit."""
    for value in ("no such set", "DEFAULT"):
        assert trainer.known({"ONEDNN_MAX_CPU_ISA": value}) == trainer.known()
