"""The seeds that a study with looks still needs."""

import json

import numpy as np
import pytest

from pipeline.config.study import Study, TrainConfig
from pipeline.runs.grid import RunSpec, expand_grid, needed_seeds
from pipeline.stats.sequential import SequentialDesign
from pipeline.training.settings import DatasetInfo
from tests.fixtures.training import TINY_STUDY

SEEDS = [0, 1, 2, 3, 4, 5]
DESIGN = SequentialDesign(looks=(3, 4, 6), margin=0.01, alpha=0.05)


class _Results:
    """What `needed_seeds` asks of the ledger."""

    def __init__(self, top1: dict[str, float | None]) -> None:
        self._top1 = top1

    def has(self, key: str) -> bool:
        return key in self._top1

    def get(self, key: str) -> "_Result":
        return _Result(self._top1[key])


class _Result:
    def __init__(self, top1: float | None) -> None:
        self.top1 = top1


def _specs(**study: object) -> list[RunSpec]:
    data = DatasetInfo(n_classes=4, image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    grid = Study.model_validate_json(json.dumps({**TINY_STUDY, "seeds": SEEDS, **study}))
    return expand_grid(grid, TrainConfig(), data, 100, {grid.filter_network: 80})


def _key(spec: RunSpec) -> str:
    return "" if spec.skip_reason else f"{spec.arm} {spec.settings.batch_size} {spec.settings.seed}"


def _needed(
    specs: list[RunSpec], trained: int, gain: float, spread: float, design: SequentialDesign | None = DESIGN
) -> int:
    """With the results of the first `trained` seeds."""
    noise = spread * np.random.default_rng(0).normal(size=len(SEEDS))
    top1: dict[str, float | None] = {
        _key(spec): 0.8 + (spec.arm == "filtered") * (gain + float(noise[spec.settings.seed]))
        for spec in specs
        if spec.settings.seed < trained and not spec.skip_reason
    }
    keys, results = [_key(spec) for spec in specs], _Results(top1)
    seeds = needed_seeds(specs, keys, results, design=design, control="random", n_images=10_000)  # type: ignore[arg-type]
    assert seeds == SEEDS[: len(seeds)]
    return len(seeds)


def test_without_looks_all_seeds_are_needed() -> None:
    assert _needed(_specs(), 0, 0.0, 0.0, design=None) == 6


@pytest.mark.parametrize(("gain", "spread", "needed"), [(0.05, 0.001, [3, 3, 3, 3, 3]), (0.0, 0.1, [3, 3, 4, 6, 6])])
def test_a_study_goes_on_until_a_look_decides(gain: float, spread: float, needed: list[int]) -> None:
    assert [_needed(_specs(), trained, gain, spread) for trained in (0, 2, 3, 4, 6)] == needed


def test_a_skipped_setting_stops_nothing() -> None:
    specs = _specs(batch_sizes=[20, 90])
    assert any(spec.skip_reason for spec in specs)
    assert _needed(specs, 3, 0.05, 0.001) == 3
