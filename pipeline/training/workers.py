"""Which processes may train by a recipe, and how they exchange gradients."""

from pipeline.batching import fitting_ranks
from pipeline.config.recipe import Recipe
from pipeline.distributed import Transport, WorkerPlan


def plan_of(recipe: Recipe) -> WorkerPlan:
    """What a recipe asks for, and what its simulated workers allow."""
    simulated, threads = recipe.simulated_workers, recipe.pinned_threads or recipe.threads_per_worker
    # Each walks alone, or compresses a gradient of its own: nobody can stand in for another.
    if recipe.post_local_sgd is not None or recipe.communication.compression != "none":
        return WorkerPlan(workers=simulated, fitting=[simulated], threads=threads)
    fitting = fitting_ranks(simulated, aligned=recipe.reduction == "tree")
    return WorkerPlan(workers=recipe.workers, fitting=fitting, threads=threads)


def transport_of(recipe: Recipe) -> Transport:
    """What a recipe says of the exchange that decides no result."""
    asked = recipe.communication
    return Transport(
        library=asked.library, bucket_mib=asked.bucket_mib, overlap=asked.overlap, hierarchical=asked.hierarchical,
        timeout_seconds=recipe.timeout_seconds,
    )  # fmt: skip
