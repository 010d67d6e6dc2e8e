"""Which processes a recipe takes, and how they exchange."""

from typing import Any

import pytest

from pipeline.config.study import TrainConfig
from pipeline.distributed import CommConfig
from pipeline.training.effective_settings import comm_config_from, launch_plan


@pytest.mark.parametrize(
    "changes",
    [
        {"post_local_sgd": {"start": {"steps": 1}, "period": 2}},
        {"communication": {"compression": "bf16"}},
        {"communication": {"compression": "powersgd", "powersgd_rank": 1, "overlap": False}},
    ],
)
def test_workers_that_nobody_can_stand_in_for_take_a_process_each(changes: dict[str, Any]) -> None:
    plan = launch_plan(TrainConfig.model_validate({"simulated_workers": 4, **changes}))
    assert (plan.workers, list(plan.valid_world_sizes)) == (4, [4])


@pytest.mark.parametrize(
    "changes", [{}, {"overlap": False}, {"bucket_mib": 5}, {"hierarchical": True}, {"library": "horovod"}]
)
def test_a_transport_takes_any_number_of_processes(changes: dict[str, Any]) -> None:
    recipe = TrainConfig.model_validate({"simulated_workers": 4, "communication": changes, "timeout_seconds": 7})
    plan = launch_plan(recipe)
    assert (plan.workers, list(plan.valid_world_sizes)) == ("auto", [1, 2, 4])
    assert comm_config_from(recipe) == CommConfig(**changes, timeout_seconds=7)
