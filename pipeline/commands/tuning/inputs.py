"""What a search trains on, and what it judges its trials on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.artifacts.prepared import load_prepared
from pipeline.config.duration import Duration
from pipeline.config.params import Params
from pipeline.config.study import Study, TrainConfig
from pipeline.config.tuning import Tuning
from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.stages.harness import StageContext
from pipeline.stages.train import resolve_cells
from pipeline.training.fingerprint import this_machine, training_code
from pipeline.training.study import DataSummary
from pipeline.tuning.source import Source, judged_rows, source_of
from pipeline.tuning.trial import Rows


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Of one search.

    Attributes:
        identity: of the images, the rows, the training code and what decides the bits on this machine.
    """

    rows: Rows
    summary: DataSummary
    source: Source
    identity: Mapping[str, Any]


def read_inputs(params: Params, tuning: Tuning, data: DataPaths) -> Inputs:
    """The first arm of the study, parted into rows to train on and rows flagged `val`.

    Raises:
        InputError: a file is missing or does not fit the others, or no image is flagged.
    """
    prepared = load_prepared(data, folder=params.prepare.folder)
    judged = judged_rows(data)
    if not judged.any():
        raise InputError(
            f"{data.manifest('train')}: flags no image `val`, by which trials are judged; give prepare.val_share, "
            "such as 0.1, and run `dvc repro`"
        )
    # The arm's rows, as the train stage finds them; of any settings, which do not change them.
    study = params.studies[tuning.study]
    asked = Study(
        filter_network=study.filter_network, models=study.models[:1], arms=study.arms[:1], batch_sizes=(2,),
        learning_rates=(1.0,), weight_decays=(0.0,), seeds=study.seeds[:1], budget=Duration(steps=1),
    )  # fmt: skip
    known = params.model_copy(update={"studies": {tuning.study: asked}, "train": TrainConfig()})
    context = StageContext(
        stage="train", item=tuning.study, params=known, data=data, work=WorkPaths(), log=RunLog.silent()
    )  # fmt: skip
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    _, (arm,), (identity,) = resolve_cells(context, prepared, Ranks(rank=0, count=1, device=device))
    assert identity is not None, "a batch of two fits every arm"
    digest, machine = str(identity.job["data"]), this_machine(device)
    return Inputs(
        rows=Rows(trained=arm & ~judged, judged=judged),
        summary=DataSummary(
            n_classes=len(prepared.class_names),
            image_size=prepared.image_size,
            mean=prepared.mean,
            std=prepared.std,
        ),
        source=source_of(data, image_folder=params.prepare.folder, digest=digest, machine=machine),
        identity={
            "data": digest,  # the manifest, in which rows are flagged, is in it
            "members": identity.job["members"],
            "code": training_code(),
            "machine": machine,
        },
    )
