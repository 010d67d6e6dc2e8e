"""How long a proposal takes on this machine, by the estimates of `plan`, without a run of DVC."""

from dataclasses import dataclass

from pipeline.commands.planning.cost import total_cost
from pipeline.commands.planning.jobs import finetune_run, measure_all, stage_costs, study_runs
from pipeline.commands.planning.size import DataSize, plan_from_sizes, stage_graph
from pipeline.config.params import Params

# A few passes of each network; `plan` takes longer and is more exact.
_MEASURE_BUDGET_S = 2.0


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Wall seconds until the suspects are listed, and of the whole pipeline."""

    suspects_s: float
    total_s: float


def estimate(params: Params, *, n_train: int, n_test: int, n_classes: int) -> TimeEstimate:
    """Return the estimate for a data set of that size; measures the networks' speed for some seconds."""
    size = DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="counted")
    graph = stage_graph(params)
    kept = dict.fromkeys(params.networks, n_train)
    runs = {
        f"train@{name}": study_runs(params, name, plan_from_sizes(params, name, size, kept)) for name in params.studies
    }
    for network in params.networks:
        runs[f"finetune@{network}"] = [finetune_run(params, network, size)]
    speeds = measure_all((run for of_stage in runs.values() for run in of_stage), budget_s=_MEASURE_BUDGET_S)
    costs = stage_costs(params, frozenset(graph), size, runs, speeds)
    suspects = [cost for stage, cost in costs.items() if not stage.startswith(("train", "report"))]
    return TimeEstimate(suspects_s=total_cost(suspects).seconds, total_s=total_cost(list(costs.values())).seconds)
