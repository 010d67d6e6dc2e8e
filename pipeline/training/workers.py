"""Which processes may train by a recipe."""

from pipeline.batching import fitting_ranks
from pipeline.config.recipe import Recipe
from pipeline.distributed import WorkerPlan


def plan_of(recipe: Recipe) -> WorkerPlan:
    """What a recipe asks for, and what its simulated workers allow."""
    tree = recipe.reduction == "tree"
    fitting = fitting_ranks(recipe.simulated_workers, aligned=tree)
    return WorkerPlan(
        workers=recipe.workers, fitting=fitting, threads=recipe.pinned_threads or recipe.threads_per_worker
    )
