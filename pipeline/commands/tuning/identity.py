"""What a search is recognised by when it is started again."""

import hashlib
import json
from importlib import metadata
from typing import Any

from pipeline.artifacts.code import code_digest, import_closure
from pipeline.commands.tuning.inputs import Inputs
from pipeline.config.params import Params
from pipeline.config.tuning import Tuning

# Beside the training code, which is in the identity of the inputs: the course of a search, and how a trial comes from
# its values, is trained and is judged.
_DECIDING = frozenset(
    f"pipeline.{name}"
    for name in (
        "config.study", "config.tuning", "training.cells", "tuning.advance", "tuning.elimination", "tuning.epoch",
        "tuning.halving", "tuning.race", "tuning.sampling", "tuning.search", "tuning.source", "tuning.trial",
    )
)  # fmt: skip
# They say how a run is done, and no trial's accuracy.
_PASSIVE_KEYS = ("checkpoint", "timeout_seconds", "workers")
_PASSIVE_STUDY_KEYS = ("figure", "keep_weights", "accuracy_every", "needs", "plan")


def fingerprint(params: Params, tuning: Tuning, inputs: Inputs) -> str:
    """Of all that decides a search; the lockstep ways have one result, and finishing some trials changes none.

    Of the study's lists the trials take the first values; its batch sizes and its budget say which values it can take.
    """
    settled = tuning.model_dump(mode="json", exclude={"way", "finish"})
    study = params.studies[tuning.study]
    first: dict[str, Any] = tuning.applied(study, {})
    first["recipe"] = {key: value for key, value in first["recipe"].items() if key not in _PASSIVE_KEYS}
    decides = {
        "tuning": {**settled, "sequential": tuning.way == "sequential"},
        "study": {key: value for key, value in first.items() if key not in _PASSIVE_STUDY_KEYS},
        "fitting": study.model_dump(mode="json", include={"batch_sizes", "budget"}),
        "train": params.train.model_dump(mode="json", exclude={*_PASSIVE_KEYS}),
        "inputs": inputs.identity,
        "code": _CODE,
        "optuna": metadata.version("optuna"),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:24]


def tuning_code() -> str:
    """Digest of the syntax trees of the modules that decide a search beside the training code."""
    module = "pipeline.tuning.search"
    return code_digest(module, passive=frozenset(import_closure(module)) - _DECIDING)


# Taken when the code is loaded: files may change while a search runs.
_CODE = tuning_code()
