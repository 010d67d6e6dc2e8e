"""Find suspect labels, choose training samples and compare runs, on your own arrays.

Only `open_results` needs a project. `load_trained` takes a file, `look` a folder or arrays, and all others arrays. Bad
input raises `InputError` with one line that names the argument, the value and the fix. The command line `batchsieve`
runs the complete pipeline.

    look           find labels that are probably wrong in a folder of images, with a page to see them
    find_issues    score each sample's label by class probabilities, features or both
    sieve          choose samples by the paper's filter: PCA, t-SNE and DBSCAN for each class, or by another scorer
    compare_runs   paired verdict on the accuracies of two sets of runs
    load_trained   load a network that the pipeline trained
    open_results   read what the pipeline wrote: networks, filters and studies, for notebooks

Importing this package imports neither torch nor scikit-learn; the first use of a function does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchsieve.comparison import RunComparison as RunComparison
    from batchsieve.comparison import compare_runs as compare_runs
    from batchsieve.filter_result import FilterResult as FilterResult
    from batchsieve.filter_result import KeepMask as KeepMask
    from batchsieve.filtering import sieve as sieve
    from batchsieve.issues import LabelIssues as LabelIssues
    from batchsieve.issues import find_issues as find_issues
    from batchsieve.looking.looking import look as look
    from batchsieve.looking.result import Look as Look
    from batchsieve.results import NetworkResults as NetworkResults
    from batchsieve.results import Results as Results
    from batchsieve.results import open_results as open_results
    from batchsieve.study_results import StudyResults as StudyResults
    from pipeline.errors import InputError as InputError
    from pipeline.training.weights import TrainedNetwork as TrainedNetwork
    from pipeline.training.weights import load_trained as load_trained

    __version__: str

_MODULES = {
    "FilterResult": "batchsieve.filter_result",
    "InputError": "pipeline.errors",
    "KeepMask": "batchsieve.filter_result",
    "LabelIssues": "batchsieve.issues",
    "Look": "batchsieve.looking.result",
    "NetworkResults": "batchsieve.results",
    "Results": "batchsieve.results",
    "RunComparison": "batchsieve.comparison",
    "StudyResults": "batchsieve.study_results",
    "TrainedNetwork": "pipeline.training.weights",
    "compare_runs": "batchsieve.comparison",
    "find_issues": "batchsieve.issues",
    "load_trained": "pipeline.training.weights",
    "look": "batchsieve.looking.looking",
    "open_results": "batchsieve.results",
    "sieve": "batchsieve.filtering",
}

__all__ = [
    "FilterResult",
    "InputError",
    "KeepMask",
    "LabelIssues",
    "Look",
    "NetworkResults",
    "Results",
    "RunComparison",
    "StudyResults",
    "TrainedNetwork",
    "compare_runs",
    "find_issues",
    "load_trained",
    "look",
    "open_results",
    "sieve",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name == "__version__":
        return import_module("importlib.metadata").version("batchsieve")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    # Later uses bypass this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
