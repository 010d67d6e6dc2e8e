"""Schemas of the JSON files of stages that the app reads."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError, model_validator

from pipeline.artifacts.files import read_json
from pipeline.config.renamed_keys import with_new_keys
from pipeline.errors import InputError, explain_file_errors


class _Content(BaseModel):
    # The files have more keys than the app reads.
    model_config = ConfigDict(frozen=True, extra="ignore")


class PrepareMetrics(_Content):
    """Metrics of `prepare`: the names of the classes, and the data set if the file names it."""

    class_names: tuple[StrictStr, ...]
    dataset: StrictStr | None = None


class FilterScorer(_Content):
    """Scorer of the filter: name and all options."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: StrictStr


class Settings(_Content):
    """Settings of `filter`."""

    scorer: FilterScorer
    near_duplicates: StrictStr | None = None

    @model_validator(mode="before")
    @classmethod
    def _translate_old_keys(cls, settings: Any) -> Any:
        """Packed results have the keys of their version."""
        return with_new_keys({"filter": settings})["filter"]


class FilterMetrics(_Content):
    """Metrics of `filter`: its settings, and the threshold in the scorer's unit; None if classes have separate ones."""

    eps: Annotated[StrictFloat | StrictInt, Field(gt=0)] | None
    settings: Settings

    @property
    def scorer(self) -> dict[str, Any]:
        return self.settings.scorer.model_dump()

    @property
    def drops_near_duplicates(self) -> bool:
        return self.settings.near_duplicates == "drop"


_T = TypeVar("_T", bound=BaseModel)


def read_typed(path: Path, kind: type[_T]) -> _T:
    """Read a JSON file as `kind`.

    Raises:
        InputError: the file is missing, cannot be read, is damaged, or does not have the keys of `kind`.
    """
    with explain_file_errors():
        content = read_json(path)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise InputError(f"{path}: {where}: {first['msg']}; run `dvc repro`") from None
