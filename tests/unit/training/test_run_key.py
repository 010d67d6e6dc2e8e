"""The key of a run contains everything that decides its bits, and nothing else."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.artifacts import provenance
from pipeline.artifacts.provenance import code_digest, import_closure
from pipeline.config.base import Duration
from pipeline.config.recipe import Recipe
from pipeline.config.study import TrainConfig
from pipeline.durations import BatchStage
from pipeline.training import run_key as module
from pipeline.training.effective_settings import effective_settings, launch_plan
from pipeline.training.run_key import RunKey, cpu_arithmetic, machine_info, run_key, worker_machine_info
from pipeline.training.settings import NEWER, DatasetInfo, GridPoint, TrainSettings
from tests.fixtures.training import ALONE, TINY

MEMBERS = np.arange(20) % 3 > 0


EXACT = replace(TINY, reduction="exact")


def _run_key(settings: TrainSettings = TINY, **options: Any) -> RunKey:
    arguments = {"train_mask": MEMBERS, "data_digest": "d", "device": ALONE.device, "threads": 1, **options}
    return run_key(settings, **arguments)


def _fingerprint(settings: TrainSettings = TINY, **options: Any) -> str:
    return _run_key(settings, **options).fingerprint


def test_changed_labels_are_part_of_the_key_and_no_change_is_not() -> None:
    assert _run_key(relabeled={}) == _run_key()
    assert "labels" not in _run_key().job
    keys = [_fingerprint(), *(_fingerprint(relabeled=changed) for changed in ({1: 2}, {1: 3}, {2: 2}, {1: 2, 2: 2}))]
    assert len(set(keys)) == len(keys)
    assert _fingerprint(relabeled={2: 2, 1: 2}) == keys[-1]


def _another(value: Any) -> Any:
    """A value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case ():
            return (BatchStage(batch_size=10, until_step=1),)
        case tuple():
            return (*value[:-1], _another(value[-1]))
        case None:
            return 7
        case Mapping():
            return {**value, "another": 1}
        case _:
            field = dataclasses.fields(value)[0].name
            return replace(value, **{field: _another(getattr(value, field))})


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TINY)])
def test_every_setting_counts(field: str) -> None:
    assert _fingerprint(replace(TINY, **{field: _another(getattr(TINY, field))})) != _fingerprint()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TINY.format)])
def test_every_part_of_the_image_format_counts(field: str) -> None:
    changed = replace(TINY.format, **{field: _another(getattr(TINY.format, field))})
    assert _fingerprint(replace(TINY, format=changed)) != _fingerprint()


def test_a_newer_setting_is_left_out_where_it_changes_nothing() -> None:
    assert not NEWER.keys() & _run_key().job["settings"].keys()
    for name, value in NEWER.items():
        assert getattr(TINY, name) == value
        assert name in _run_key(replace(TINY, **{name: _another(value)})).job["settings"]


def test_equal_settings_are_one_run() -> None:
    reordered = dict(reversed(list(TINY.optimizer_options.items())))
    assert _fingerprint(replace(TINY, optimizer_options=reordered)) == _fingerprint()


# How a run is done, not which: at most the rounding of its results differs.
_HOW = {
    "workers": 2,
    "micro_batch": 32,
    "communication": {"hierarchical": True, "bucket_mib": 5},
    "checkpoint": {"steps": 5},
    "eval_batch_size": 7,
    "timeout_seconds": 7,
    # The machine in the key has it: `cpu_arithmetic`.
    "isa": "avx2",
}
_WHICH: dict[str, Any] = {
    "stem": "cifar",
    "optimizer": {"name": "lars"},
    "schedule": {"name": "cosine"},
    "batch_schedule": {"stages": ({"share": 0.5, "until": {"steps": 1}},)},
    "lr_scaling": {"rule": "linear", "reference_batch_size": 10},
    "decay_norm_and_bias": False,
    "label_smoothing": 0.1,
    "augmentation": {"flip": True},
    "clip_norm": 1.0,
    "ema_decay": 0.9,
    "precision": "bf16",
    "compile": True,
    "fast": True,
    "simulated_workers": 4,
    "bn_group": 5,
    "reduction": "exact",
    "post_local_sgd": {"start": {"steps": 1}, "period": 2},
    "noise_scale_steps": 1,
    # More than any machine has, which `auto` gives.
    "threads_per_worker": 10_000,
}


def _key_of_recipe(changes: Mapping[str, Any]) -> str:
    recipe = TrainConfig.model_validate({"simulated_workers": 2, **changes})
    settings = effective_settings(
        recipe,
        DatasetInfo(n_classes=4, image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3),
        GridPoint(network="resnet18", batch_size=20, learning_rate=0.1, weight_decay=0.0, seed=0),
        n_epoch=20, budget=Duration(steps=4),
    )  # fmt: skip
    threads = launch_plan(recipe).threads
    return _fingerprint(settings, threads=2 if threads == "auto" else threads)


@pytest.mark.parametrize("key", sorted(Recipe.model_fields))
def test_a_key_of_the_recipe_counts_exactly_if_it_says_which_run(key: str) -> None:
    """Retraining a study for the memory of its evaluation would be a surprise, and so would the opposite."""
    change = {**_HOW, **_WHICH}[key]
    assert (_key_of_recipe({key: change}) == _key_of_recipe({})) == (key in _HOW)


def test_compression_says_which_run_it_is() -> None:
    low_rank = {"compression": "powersgd", "overlap": False}
    ways: list[dict[str, Any]] = [
        {},
        {"compression": "bf16"},
        {"compression": "fp16"},
        {"compression": "bf16", "hierarchical": True, "workers_per_node": 2},
        {**low_rank, "powersgd_rank": 1},
        {**low_rank, "powersgd_rank": 2},
    ]
    keys = [_key_of_recipe({"simulated_workers": 4, "communication": way}) for way in ways]
    assert len(set(keys)) == len(ways)
    assert _key_of_recipe({"simulated_workers": 4, "communication": {**ways[1], "overlap": False}}) == keys[1]


def test_members_and_data_count() -> None:
    others = MEMBERS.copy()
    others[0] ^= True
    assert _fingerprint(train_mask=others) != _fingerprint()
    assert _fingerprint(data_digest="e") != _fingerprint()


def test_a_result_belongs_to_the_simulated_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many processes do the work is nowhere in it."""
    before = _fingerprint(), _fingerprint(EXACT)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (_fingerprint(), _fingerprint(EXACT)) == before
    assert _fingerprint(replace(TINY, simulated_workers=4)) != before[0]


def test_threads_of_a_worker_count_and_those_of_the_caller_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bits are promised on any machine, the settings give the number."""
    pinned = replace(EXACT, threads=1)
    before, exact = _fingerprint(), _fingerprint(pinned)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert (_fingerprint(), _fingerprint(pinned)) == (before, exact)
    assert _fingerprint(threads=2) != before
    assert _fingerprint(pinned, threads=2) == exact
    assert _fingerprint(replace(pinned, threads=2)) != exact


def test_threads_and_arithmetic_of_a_cpu_decide_no_bit_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    gpu = torch.device("cuda")
    assert worker_machine_info(gpu, 1) == worker_machine_info(gpu, 2) == machine_info(gpu)
    assert set(machine_info(gpu)) == set(machine_info(ALONE.device)) - {"arithmetic"} | {"gpu_code"}


def test_a_change_of_the_code_for_gpus_is_part_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canonical runs, which put code into families, are of CPUs."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    keys = {device: _fingerprint(device=torch.device(device)) for device in ("cpu", "cuda")}
    monkeypatch.setattr(module, "_GPU_CODE", 0)
    assert _fingerprint(device=torch.device("cpu")) == keys["cpu"]
    assert _fingerprint(device=torch.device("cuda")) != keys["cuda"]


def test_comparing_arithmetic_leaves_threads_and_generators_alone() -> None:
    before = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        first = cpu_arithmetic.__wrapped__()
        assert torch.get_num_threads() == 2
        with torch.inference_mode():
            assert cpu_arithmetic.__wrapped__() == first
    finally:
        torch.set_num_threads(before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_run_key_survives_a_file() -> None:
    """A ledger of another machine holds run keys as JSON."""
    key = _run_key()
    again = RunKey(**json.loads(json.dumps(dataclasses.asdict(key))))
    assert again.fingerprint == key.fingerprint
    assert re.fullmatch("[0-9a-f]{24}", key.fingerprint)


def test_job_and_machine_have_separate_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _run_key()
    monkeypatch.setattr(torch, "__version__", "0.0")
    after = _run_key()
    assert after.job == before.job
    assert after.machine != before.machine
    assert after.machine == worker_machine_info(ALONE.device, 1)


@pytest.mark.parametrize("what", ["torch", "device", "arithmetic", "MKL", "code"])
def test_versions_and_machine_count(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    before = _fingerprint()
    if what == "torch":
        monkeypatch.setattr(torch, "__version__", "0.0")
    elif what == "device":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    elif what == "arithmetic":
        monkeypatch.setattr(module, "cpu_arithmetic", lambda: "another")
    elif what == "MKL":
        monkeypatch.setenv("MKL_CBWR", "AUTO")
    else:
        monkeypatch.setattr(module, "training_code_digest", lambda: "another")
    assert _fingerprint() != before


def test_the_code_that_decides_a_result_counts() -> None:
    closures = (
        import_closure(f"pipeline.training.{name}", exclude=module._EXCLUDED) for name in module._RESULT_MODULES
    )
    closure = set().union(*closures)
    deciding = {
        "batching",
        "models.layers",
        "models.resnet",
        "models.small_maps",
        "optim.optimizers",
        "schedules",
        "datasets.resident",
        "datasets.streaming",
        "training.gradients",
    }
    assert {f"pipeline.{name}" for name in deciding} <= closure
    assert not {"pipeline.run_log", "pipeline.errors", "pipeline.paths", "pipeline.stages.train"} & closure


_A = "from pipeline import b\nfrom pipeline.c import say\n\ndef f(x):\n    return b.g(x)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pipeline.a imports pipeline.b, and words for people from pipeline.c."""
    monkeypatch.setattr(provenance, "_PROJECT", tmp_path)
    package = tmp_path / "pipeline"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(
        "from pipeline import b\nfrom pipeline.c import say\n\ndef f(x):\n    return b.g(x)\n"
    )
    (package / "b.py").write_text("def g(x):\n    return x + 1\n")
    (package / "c.py").write_text("def say():\n    return 'hello'\n")
    return package


def _digest() -> str:
    return code_digest("pipeline.a", exclude=frozenset({"pipeline.c"}))


def test_the_digest_is_the_same_on_every_version_of_python(project: Path) -> None:
    """The syntax trees of some versions have type parameters, and empty parts of a string with a nested format."""
    (project / "a.py").write_text("class A:\n    def f(self, x, w):\n        return [f'{x:{w}}', f'{x:>{w}.2f}', []]\n")

    assert _digest().startswith("7e1126547d15d003")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.py", f'"""A."""\n# why\n{_A}'),
        ("a.py", _A.replace("return", '"""F."""\n    return')),
        ("b.py", "def g(x):\n    # more\n\n    return (x\n        + 1)\n"),
        ("c.py", "def say():\n    return 'good morning'\n"),
        ("d.py", "nobody = 'imports me'\n"),
    ],
)
def test_words_do_not_count(project: Path, file: str, text: str) -> None:
    before = _digest()
    (project / file).write_text(text)
    assert _digest() == before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("b.py", "def g(x):\n    return x + 2\n"),
        ("b.py", "def g(x, y=0):\n    return x + 1\n"),
        ("b.py", "def g(x):\n    import pipeline.d\n    return x + 1\n"),
        ("a.py", "from pipeline import b\n\ndef f(x):\n    return b.g(x)\n"),
        ("__init__.py", "import os\n"),
    ],
)
def test_code_counts(project: Path, file: str, text: str) -> None:
    before = _digest()
    (project / "d.py").write_text("z = 1\n")
    (project / file).write_text(text)
    assert _digest() != before
