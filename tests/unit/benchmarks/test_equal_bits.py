"""The benchmark of equal bits counts the hashes of a job over processes and collectives."""

import json
import sys

import pytest

from benchmarks.equal_bits import _COLLECTIVES, rows_of
from tests.fixtures.training import run


def _result(job: str, value: str) -> dict[str, str]:
    return {"job": job, **dict.fromkeys(_COLLECTIVES, value)}


def test_one_other_hash_of_a_job_is_counted() -> None:
    launches = {
        "1": [_result("a", "0" * 64), _result("b", "1" * 64)],
        "2": [_result("a", "0" * 64), {**_result("b", "1" * 64), "one message": "2" * 64}],
    }
    rows = rows_of(launches)
    assert [(row["job"], row["processes"], row["hashes of the job"]) for row in rows] == [
        ("a", "1", 1),
        ("a", "2", 1),
        ("b", "1", 2),
        ("b", "2", 2),
    ]
    assert rows[-1]["one message"] == "2" * 8


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("reduction", "one"), [("exact", True), ("ddp", False)])
def test_real_ranks_have_one_hash_with_exact_sums_alone(reduction: str, one: bool) -> None:
    words = ["--networks", "small_cnn", "--optimizers", "sgd", "--precisions", "fp32", "--steps=2"]
    command = [sys.executable, "-m", "benchmarks.equal_bits", *words, "--ranks", "1", "4", "--reduction", reduction]
    done = run(command, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["results"]
    assert [row["processes"] for row in rows] == ["1", "4", "4 on 2 nodes"]
    assert {row["hashes of the job"] == 1 for row in rows} == {one}
