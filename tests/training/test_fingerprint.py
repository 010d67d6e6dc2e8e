"""What a finished cell is recognised by: everything that decides its bits, and nothing else."""

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
from made_up_training import ALONE, TINY

from pipeline.artifacts import code
from pipeline.artifacts.code import code_digest, import_closure
from pipeline.config.duration import Duration
from pipeline.config.recipe import Recipe
from pipeline.config.study import TrainConfig
from pipeline.training import fingerprint as module
from pipeline.training.fingerprint import Identity, identify, this_machine
from pipeline.training.settings import TrainSettings, effective_settings

MEMBERS = np.arange(20) % 3 > 0


TREE = replace(TINY, reduction="tree")


def _identity(settings: TrainSettings = TINY, **options: Any) -> Identity:
    arguments = {"members": MEMBERS, "data_digest": "d", "device": ALONE.device, **options}
    return identify(settings, **arguments)


def _key(settings: TrainSettings = TINY, **options: Any) -> str:
    return _identity(settings, **options).key


def _another(value: Any) -> Any:
    """A value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
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
    assert _key(replace(TINY, **{field: _another(getattr(TINY, field))})) != _key()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TINY.format)])
def test_every_part_of_the_image_format_counts(field: str) -> None:
    changed = replace(TINY.format, **{field: _another(getattr(TINY.format, field))})
    assert _key(replace(TINY, format=changed)) != _key()


def test_equal_settings_are_one_cell() -> None:
    assert _key(replace(TINY, optimizer_options=dict(reversed(list(TINY.optimizer_options.items()))))) == _key()


# How a run is done, not which: at most the rounding of its results differs.
_HOW = {
    "workers": 2,
    "threads_per_worker": 2,
    "micro_batch": 32,
    "communication": {"hierarchical": True, "bucket_mib": 5},
    "checkpoint": {"steps": 5},
    "eval_batch_size": 7,
    "timeout_seconds": 7,
}
_WHICH: dict[str, Any] = {
    "stem": "cifar",
    "optimizer": {"name": "lars"},
    "schedule": {"name": "cosine"},
    "lr_scaling": {"rule": "linear", "reference_batch_size": 10},
    "decay_norm_and_bias": False,
    "label_smoothing": 0.1,
    "augmentation": {"flip": True},
    "clip_norm": 1.0,
    "ema_decay": 0.9,
    "precision": "bf16",
    "compile": True,
    "simulated_workers": 4,
    "bn_group": 5,
    "reduction": "tree",
    "post_local_sgd": {"start": {"steps": 1}, "period": 2},
    "noise_scale_steps": 1,
}


def _key_of_recipe(changes: Mapping[str, Any]) -> str:
    recipe = TrainConfig.model_validate({"simulated_workers": 2, **changes})
    settings = effective_settings(
        recipe, network="resnet18", n_classes=4, n_epoch=20, image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3,
        batch_size=20, learning_rate=0.1, weight_decay=0.0, budget=Duration(steps=4), seed=0,
    )  # fmt: skip
    return _key(settings)


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
    assert _key(members=others) != _key()
    assert _key(data_digest="e") != _key()


def test_a_result_belongs_to_the_simulated_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many processes do the work is nowhere in it."""
    before = _key(), _key(TREE)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (_key(), _key(TREE)) == before
    assert _key(replace(TINY, simulated_workers=4)) != before[0]


def test_threads_count_as_a_setting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bits are promised on any machine, the number is in the settings, not asked of this process."""
    before, tree = _key(), _key(TREE)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert (_key(), _key(TREE)) == (before, tree)
    assert _key(replace(TREE, threads=2)) != tree


def test_an_identity_survives_a_file() -> None:
    """A ledger of another machine holds identities as JSON."""
    identity = _identity()
    again = Identity(**json.loads(json.dumps(dataclasses.asdict(identity))))
    assert again.key == identity.key
    assert re.fullmatch("[0-9a-f]{24}", identity.key)


def test_job_and_machine_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _identity()
    monkeypatch.setattr(torch, "__version__", "0.0")
    after = _identity()
    assert after.job == before.job
    assert after.machine != before.machine
    assert after.machine == this_machine(ALONE.device)


@pytest.mark.parametrize("what", ["torch", "device", "code"])
def test_versions_and_machine_count(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    before = _key()
    if what == "torch":
        monkeypatch.setattr(torch, "__version__", "0.0")
    elif what == "device":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
    else:
        monkeypatch.setattr(module, "training_code", lambda: "another")
    assert _key() != before


def test_the_code_that_decides_a_result_counts() -> None:
    closures = (import_closure(f"pipeline.training.{name}", passive=module._PASSIVE) for name in module._DECIDING)
    closure = set().union(*closures)
    deciding = {
        "batching",
        "models.keyed_dropout",
        "models.resnet",
        "optim.sgd",
        "schedules.cosine",
        "datasets.resident",
        "datasets.streaming",
        "training.gradient",
    }
    assert {f"pipeline.{name}" for name in deciding} <= closure
    assert not {"pipeline.run_log", "pipeline.errors", "pipeline.paths", "pipeline.stages.train"} & closure


_A = "from pipeline import b\nfrom pipeline.c import say\n\ndef f(x):\n    return b.g(x)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pipeline.a imports pipeline.b, and words for people from pipeline.c."""
    monkeypatch.setattr(code, "_PROJECT", tmp_path)
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
    return code_digest("pipeline.a", passive=frozenset({"pipeline.c"}))


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
