"""Read params.yaml as one validated, frozen object, and check the rules between its sections."""

import json
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from pipeline.config.base import Section, describe_validation_error
from pipeline.config.extractors import ExtractConfig, NetworkName
from pipeline.config.filter import FilterConfig
from pipeline.config.finetune import FinetuneConfig
from pipeline.config.prepare import PrepareConfig
from pipeline.config.reduce import ReduceConfig
from pipeline.config.renamed_keys import renamed_key_error, with_moved_keys, with_new_keys
from pipeline.config.runtime import DaskConfig, ReportConfig
from pipeline.config.section_checks import check_sections
from pipeline.config.study import Study, TrainConfig
from pipeline.config.tuning import Tuning
from pipeline.config.yaml_reading import parse_yaml, read_yaml_text
from pipeline.errors import InputError

# Names of studies and searches become part of file names, names of studies also of DVC stage names.
StudyName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=60)]


class Params(Section):
    """The content of params.yaml. Each stage has a section; `networks` and `studies` are the matrices of dvc.yaml.

    Attributes:
        networks: the extractors. `resnet18-r1`, `resnet18-r2`, ... are replicates of `resnet18`: the same
            architecture with other random numbers. `timm/NAME` or `timm/NAME.TAG` is a network of timm. Its images
            are resized to the size that its weights were trained with.
    """

    prepare: PrepareConfig
    networks: Annotated[tuple[NetworkName, ...], Field(min_length=1)]
    finetune: FinetuneConfig
    extract: ExtractConfig
    reduce: ReduceConfig
    filter: FilterConfig
    train: TrainConfig
    studies: Annotated[dict[StudyName, Study], Field(min_length=1)]
    report: ReportConfig
    dask: DaskConfig = DaskConfig()
    tuning: dict[StudyName, Tuning] = Field(default={})

    @model_validator(mode="after")
    def _networks_are_distinct(self) -> Self:
        if len(set(self.networks)) < len(self.networks):
            raise ValueError(f"networks names one twice: {list(self.networks)}")
        return self


def load_params(path: Path | str = "params.yaml", *, accept_old_keys: bool = False) -> Params:
    """Read and check a parameter file.

    Args:
        accept_old_keys: translate renamed and moved keys, for parameters that were stored with results.

    Raises:
        InputError: naming the file, the key path, the value and the fix.
    """
    tree = parse_yaml(read_yaml_text(Path(path)), source=str(path))
    return check_params(with_moved_keys(with_new_keys(tree)) if accept_old_keys else tree, source=str(path))


def check_params(tree: Any, *, source: str) -> Params:
    """Validate a parsed parameter file; errors name `source`.

    Raises:
        InputError: a key is unknown or renamed, a value is not allowed, or two keys contradict each other.
    """
    if renamed := renamed_key_error(tree):
        raise InputError(f"{source}: {renamed}")
    try:
        # Strict validation takes lists for tuples in its JSON mode alone.
        params = Params.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        raise InputError(f"{source}: {describe_validation_error(error, tree, Params)}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{source}: cannot be read as plain keys and values ({error}); see presets/") from None
    check_sections(params, source)
    return params
