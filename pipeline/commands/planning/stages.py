"""Which stages `dvc repro` would run."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config.params import Params

Graph = Mapping[str, tuple[str, ...]]
"""Stage, as DVC calls it -> the stages whose outputs it reads; in an order in which they can run."""


def stage_graph(params: Params) -> Graph:
    """The graph that dvc.yaml makes of the networks and studies of `params`."""
    graph: dict[str, tuple[str, ...]] = {"prepare": ()}
    chain = ("finetune", "extract", "reduce", "filter")
    for stage, before in zip(chain, ("prepare", *chain), strict=False):
        for network in params.networks:
            graph[f"{stage}@{network}"] = (before if before == "prepare" else f"{before}@{network}",)
    for name, study in params.studies.items():
        graph[f"train@{name}"] = _stages_before(study.needs or study.possible_needs[0], params.networks)
    graph["report"] = tuple(stage for stage in graph if stage.startswith(("filter", "train")))
    return graph


def _stages_before(needs: str, networks: Sequence[str]) -> tuple[str, ...]:
    """Of a study, by its key `needs`."""
    stage, _, network = needs.partition("/")
    if stage == "prepare":
        return ("prepare",)
    return (f"{stage}@{network}",) if network else tuple(f"{stage}@{name}" for name in networks)


def changed_stages(project: Path) -> frozenset[str] | None:
    """Stages of which DVC sees a changed dependency, parameter or output; None where it cannot say."""
    command = [sys.executable, "-m", "dvc", "status", "--json"]
    answer = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    try:
        return frozenset(json.loads(answer.stdout)) if answer.returncode == 0 else None
    except ValueError:
        return None


def stages_to_run(graph: Graph, changed: frozenset[str] | None) -> frozenset[str]:
    """The changed stages and all that follow them; without DVC's word, all.

    A stage that follows may be spared after all, if what comes before it turns out as it was.
    """
    running: set[str] = set()
    for stage, before in graph.items():
        if changed is None or stage in changed or running.intersection(before):
            running.add(stage)
    return frozenset(running)
