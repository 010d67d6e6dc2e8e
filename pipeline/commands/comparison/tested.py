"""Which test images the runs of an experiment were tested on, and whether two experiments share them.

Accuracies on unlike images differ whatever the networks do, by as much in every seed: a paired test would call it an
effect. Neither a run's settings nor its columns tell of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from pipeline.artifacts.json_file import read_json
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from pipeline.stats.wording import count

_COLUMNS = {"sha256": pa.string(), "label_name": pa.string()}


@dataclass(frozen=True, kw_only=True)
class EvaluationImages:
    """The test images of one experiment.

    Attributes:
        images: how often there is an image with its label, by (sha256, label_name), wherever its file lies.
        unknown: by study, why `images` may not be what its runs were tested on; studies for which they are lack.
    """

    images: Counter[tuple[str, str]]
    unknown: Mapping[str, str]


def read_tested(data: DataPaths, studies: Iterable[str]) -> EvaluationImages:
    """From data/prepare/test.parquet, if the files that the studies were trained with are those beside it.

    Raises:
        InputError: a file is damaged.
    """
    manifest = data.manifest("test")
    if not manifest.exists():
        why = f"{manifest.relative_to(data.root).as_posix()} is missing (that of a revision: `dvc pull --all-commits`)"
        return EvaluationImages(images=Counter(), unknown=dict.fromkeys(studies, why))
    table = read_parquet(manifest, _COLUMNS)
    prepared = _recorded(data, "prepare", None, "outputs", "")
    unknown = {}
    for study in studies:
        trained_with = _recorded(data, "train", study, "inputs", "../prepare/")
        if trained_with[0] and not trained_with[1]:
            unknown[study] = "it was trained before the labels were recorded with it; train it again (`dvc repro`)"
        elif None in (*prepared, *trained_with):
            unknown[study] = "a provenance file that names them, of prepare or of the study, is missing"
        elif prepared != trained_with:
            unknown[study] = "data/prepare was made anew since the study was trained"
    pairs = zip(table["sha256"].to_pylist(), table["label_name"].to_pylist(), strict=True)
    return EvaluationImages(images=Counter(pairs), unknown=unknown)


def why_no_verdict(study: str, a: EvaluationImages, b: EvaluationImages) -> str | None:
    """Why the accuracies of a study in A and B cannot be compared, as the end of a sentence; None where they can."""
    unknown = [f"of {name}, {of.unknown[study]}" for name, of in (("A", a), ("B", b)) if study in of.unknown]
    if unknown:
        return f"it is not known whether both were tested on the same images: {'; '.join(unknown)}"
    if a.images == b.images:
        return None
    both = (a.images & b.images).total()
    return (
        f"they were tested on other images: A on {count(a.images.total())}, B on {count(b.images.total())}, "
        f"of which {count(both)} are the same with the same label"
    )


def _recorded(data: DataPaths, stage: str, item: str | None, role: str, folder: str) -> list[str | None]:
    """SHA-256 of pixels and labels in `folder`, inputs or outputs as a stage recorded them; None where it did not."""
    path = data.provenance(stage, item)
    files: Mapping[str, str] = read_json(path).get(role, {}) if path.exists() else {}
    return [files.get(folder + name) for name in ("test.npy", "test.parquet")]
