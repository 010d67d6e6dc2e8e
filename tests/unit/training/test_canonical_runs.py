"""The canonical runs use what studies use, repeat their bits, and notice when the code computes something else."""

import json
import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from pipeline import batching, distributed, has_avx2
from pipeline.commands.canonical_runs import CanonicalHashes, earlier_hashes, processor_verdict, run_local
from pipeline.config.recipe import Recipe
from pipeline.models import NETWORKS
from pipeline.optim import OPTIMIZERS
from pipeline.run_log import RunLog
from pipeline.schedules import SCHEDULES
from pipeline.training import canonical_runs, dynamics, evaluation, step
from pipeline.training.canonical_runs import STEPS, canonical_hashes, canonical_jobs
from pipeline.training.code_families import (
    FAMILIES_FILE,
    Family,
    MachineHashes,
    canonical_runs_cover,
    find_family,
    read_families,
)
from pipeline.training.run_key import machine_info, training_code_digest
from tests.fixtures.projects import ROOT

JOBS = canonical_jobs()
QUICK = ("small_cnn muon", "small_cnn adamw", "small_cnn radam bf16 noise", "resnet9 dynamics", "images in files")


def test_every_choice_that_they_stand_for_is_in_one() -> None:
    settings = list(JOBS.values())
    assert {job.optimizer for job in settings} == OPTIMIZERS.keys()
    assert {job.schedule for job in settings} == SCHEDULES.keys()
    assert {job.reduction for job in settings} == set(get_args(Recipe.model_fields["reduction"].annotation))
    assert {job.precision for job in settings} == {"fp32", "bf16"}
    assert {(job.network, job.stem) for job in settings} >= {
        ("resnet18", "imagenet"),
        ("resnet18", "cifar"),
        ("resnet50", "imagenet"),
        ("resnet9", "imagenet"),
    }
    for name in ("label_smoothing", "ema_decay", "clip_norm", "batch_stages", "batch_lr_scaling", "warmup_steps"):
        assert any(getattr(job, name) for job in settings), name
    for name in ("noise_scale_steps", "accuracy_steps", "accuracy_examples", "bn_group", "local_from_step"):
        assert any(getattr(job, name) is not None for job in settings), name
    assert all(canonical_runs_cover(vars(job)) for job in settings)


def test_every_network_whose_code_they_are_to_cover_is_in_one() -> None:
    plain = vars(JOBS["small_cnn muon"])
    covered = {name for name in NETWORKS if canonical_runs_cover({**plain, "network": name})}
    assert covered == set(NETWORKS)
    assert {job.network for job in JOBS.values()} >= covered
    # The networks of few steps differ from others in their numbers of layers and channels alone.
    assert {job.network for job in JOBS.values() if job.steps == STEPS} >= {"resnet18", "resnet50", "resnet9"}


def _quick_hashes() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical_runs, "_JOBS", {name: canonical_runs._JOBS[name] for name in QUICK})
        return canonical_hashes()


@pytest.fixture(scope="module")
def hashes() -> dict[str, str]:
    return _quick_hashes()


@pytest.mark.slow
def test_threads_of_the_process_change_no_hash_and_are_left_alone(hashes: dict[str, str]) -> None:
    before, generator = torch.get_num_threads(), torch.get_rng_state()
    threads = before + 1
    try:
        torch.set_num_threads(threads)
        assert _quick_hashes() == hashes
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(set(hashes.values())) == len(QUICK)
    assert torch.equal(torch.get_rng_state(), generator)


def _half_clip(parameters: Any, norm: float) -> object:
    return nn.utils.clip_grad_norm_(parameters, norm / 2)


class _Utils:
    clip_grad_norm_ = staticmethod(_half_clip)


class _Nn:
    Module, utils = nn.Module, _Utils


def _wrong_by_one(model: Any, *arguments: Any, **options: Any) -> Any:
    result = _evaluate(model, *arguments, **options)
    result.correct[0] ^= True
    return result


_evaluate = evaluation.evaluate


def _never_forgotten(correct: Any, passes: Any) -> Any:
    return np.zeros(len(passes), dtype=np.float32)


# What is replaced, by what, and the jobs that notice.
_MUTANTS: dict[str, tuple[Any, str, Any, set[str]]] = {
    "clipping": (step, "nn", _Nn, {"small_cnn muon"}),
    "sum of leaves": (
        distributed,
        "pairwise_sum",
        lambda values: sum(list(values)[::-1]) * (1 + 2**-20),
        {"small_cnn radam bf16 noise"},
    ),
    "forgetting": (dynamics, "_forgetting", _never_forgotten, {"resnet9 dynamics"}),
    "evaluation": (canonical_runs, "evaluate", _wrong_by_one, set(QUICK)),
    "order of samples": (batching.SampleStream, "_order", lambda self, _: self._train_mask.nonzero()[0], set(QUICK)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", list(_MUTANTS))
def test_code_that_computes_something_else_has_other_hashes(
    mutant: str, hashes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, replacement, noticed = _MUTANTS[mutant]
    monkeypatch.setattr(place, name, replacement)
    after = _quick_hashes()
    assert {job for job in QUICK if after[job] != hashes[job]} == noticed


def _assert_listed(local: CanonicalHashes) -> None:
    """Compare with the list or, where it lacks this arithmetic, with an earlier member of the family, run here."""
    family = find_family(local.code, read_families())
    if family is None:
        pytest.skip("the training code is not listed, as another test says")
    listed = family.hashes_on(local.machine) or earlier_hashes(family, local)
    if listed is None:
        pytest.skip(
            f"{FAMILIES_FILE.name} has no hashes of {local.machine}, and git's history no other code of the family"
        )
    compared = listed.keys() & local.hashes.keys()
    assert compared
    assert {name: local.hashes[name] for name in compared} == {name: listed[name] for name in compared}


@pytest.mark.subprocess
def test_short_runs_have_the_listed_hashes(hashes: dict[str, str]) -> None:
    machine = machine_info(torch.device("cpu"))
    _assert_listed(CanonicalHashes(code=training_code_digest(), machine=machine, hashes=hashes))


# Arithmetic and versions of a process with limited instructions; torch must not have computed before.
_LIMITED_MACHINE = """
import json
import torch
from pipeline.instruction_set import limit_instructions
limit_instructions("avx2")
from pipeline.training.run_key import machine_info
print(json.dumps(machine_info(torch.device("cpu"))))
"""
# The command, on some of the jobs.
_LIMITED_RUNS = """
import sys
from pipeline.training import canonical_runs
canonical_runs._JOBS = {name: canonical_runs._JOBS[name] for name in sys.argv[1:]}
from pipeline.__main__ import main
sys.exit(main(["canonical-runs", "--isa", "avx2", "--json"]))
"""
_LEFT_OUT = ("resnet18 sgd", "resnet50 few images")
_LIMITED = tuple(name for name in JOBS if not name.startswith(_LEFT_OUT))
_WITH_AVX2 = pytest.mark.skipif(not has_avx2(), reason="this processor lacks AVX2")


def _listing_family() -> Family:
    family = find_family(training_code_digest(), read_families())
    if family is None:
        pytest.skip("the training code is not listed, as another test says")
    return family


@_WITH_AVX2
@pytest.mark.subprocess
def test_limited_instructions_give_a_listed_arithmetic() -> None:
    """The full check takes a minute; see the next test."""
    command = [sys.executable, "-c", _LIMITED_MACHINE]
    machine = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    assert machine["device"] == "AVX2"
    if _listing_family().hashes_on(machine) is None:
        pytest.skip(
            f"no record has this processor's arithmetic under AVX2 ({machine['arithmetic']}); "
            "`python -m pipeline canonical-runs --isa avx2` prints whether it gives the recorded bits"
        )


@_WITH_AVX2
@pytest.mark.slow
@pytest.mark.subprocess
def test_limited_instructions_give_the_listed_hashes() -> None:
    """Fails where the arithmetic is listed with other hashes; skipped where that of this processor is another one.

    On jobs with every choice that changes which operations run. Where this process has no other instructions, the last
    test runs all jobs with these, so a few suffice here.
    """
    jobs = QUICK if machine_info(torch.device("cpu"))["device"] == "AVX2" else _LIMITED
    for name in ("network", "optimizer", "schedule", "precision", "reduction"):
        assert {getattr(JOBS[job], name) for job in _LIMITED} == {getattr(job, name) for job in JOBS.values()}, name
    command = [sys.executable, "-c", _LIMITED_RUNS, *jobs]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    limited = CanonicalHashes(**json.loads(done.stdout))
    assert limited.machine["device"] == "AVX2"
    assert limited.hashes.keys() == set(jobs)
    _assert_agrees(limited, _listing_family())


def _assert_agrees(limited: CanonicalHashes, family: Family) -> None:
    verdict = processor_verdict(family, limited)
    if family.hashes_on(limited.machine) is None and not verdict.startswith("this processor gives"):
        pytest.skip(verdict)
    assert verdict.startswith("this processor gives"), verdict


@pytest.mark.parametrize(
    ("arithmetic", "hashes", "outcome"),
    [
        ("listed", {"sgd": "01"}, None),
        ("listed", {"sgd": "99"}, "1 of 1 hashes differ"),
        ("new", {"sgd": "01"}, None),
        ("new", {"sgd": "99"}, "this processor does not give the recorded bits: 1 of 1 hashes differ"),
    ],
)
def test_an_unlisted_arithmetic_is_judged_by_records_alone(
    arithmetic: str, hashes: dict[str, str], outcome: str | None
) -> None:
    """Earlier members are not run: they would say nothing about the processor."""
    record = MachineHashes(machine={"device": "AVX2", "arithmetic": "listed"}, hashes={"sgd": "01"})
    family = Family(members=("a", "b"), records=(record,))
    limited = CanonicalHashes(code="b", machine={"device": "AVX2", "arithmetic": arithmetic}, hashes=hashes)
    if outcome is None:
        _assert_agrees(limited, family)
        return
    kind: type[BaseException] = AssertionError if arithmetic == "listed" else pytest.skip.Exception
    with pytest.raises(kind, match=outcome):
        _assert_agrees(limited, family)


@pytest.mark.slow
@pytest.mark.subprocess
def test_all_runs_have_the_listed_hashes() -> None:
    local = run_local(RunLog.silent())
    assert local.hashes.keys() == JOBS.keys()
    _assert_listed(local)
