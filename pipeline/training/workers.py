"""Which processes may train by a recipe."""

from pipeline.batching import fitting_ranks
from pipeline.config.recipe import Recipe
from pipeline.distributed import WorkerPlan


def plan_of(recipe: Recipe) -> WorkerPlan:
    """What a recipe asks for, and what its simulated workers allow."""
    simulated, threads = recipe.simulated_workers, recipe.pinned_threads or recipe.threads_per_worker
    if recipe.post_local_sgd is not None:  # each walks alone: nobody can stand in for another
        return WorkerPlan(workers=simulated, fitting=[simulated], threads=threads)
    fitting = fitting_ranks(simulated, aligned=recipe.reduction == "tree")
    return WorkerPlan(workers=recipe.workers, fitting=fitting, threads=threads)
