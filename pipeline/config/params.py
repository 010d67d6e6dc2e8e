"""The whole of params.yaml: one validated, frozen object."""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.config.base import Section
from pipeline.config.extract import ExtractConfig
from pipeline.config.filter import FilterConfig
from pipeline.config.finetune import FinetuneConfig
from pipeline.config.prepare import PrepareConfig
from pipeline.config.recipe import Network, Recipe
from pipeline.config.reduce import ReduceConfig
from pipeline.config.report import ReportConfig
from pipeline.config.study import Study, TrainConfig
from pipeline.errors import InputError

# A study's name becomes part of file names and of DVC's stage names.
StudyName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=60)]


class Params(Section):
    """params.yaml. Each stage has its section; `networks` and `studies` span DVC's matrices."""

    prepare: PrepareConfig
    networks: Annotated[tuple[Network, ...], Field(min_length=1)]
    finetune: FinetuneConfig
    extract: ExtractConfig
    reduce: ReduceConfig
    filter: FilterConfig
    train: TrainConfig
    studies: Annotated[dict[StudyName, Study], Field(min_length=1)]
    report: ReportConfig

    @model_validator(mode="after")
    def _networks_are_distinct(self) -> Self:
        if len(set(self.networks)) < len(self.networks):
            raise ValueError(f"networks names one twice: {list(self.networks)}")
        return self


def load_params(path: Path | str = "params.yaml") -> Params:
    """Read and check the whole of a parameter file.

    Raises:
        InputError: naming the file, the key path, the value and the mend.
    """
    return check_params(_read_yaml(Path(path)), source=str(path))


def check_params(tree: Any, *, source: str) -> Params:
    """Validate a parsed parameter file; `source` is named in errors."""
    try:
        # The JSON mode of strict validation is the one that takes lists for tuples.
        params = Params.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        raise InputError(f"{source}: {_describe(error)}") from None
    _check_across_sections(params, source)
    return params


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run in the project's folder or `make preset NAME=digits`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); it must be a UTF-8 text file") from None
    try:
        # YAML 1.2: `1e-3` is a number, `no` is a string, and a key given twice is an error.
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "somewhere"
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise InputError(f"{path}: not valid YAML at {where}: {problem}") from None


def _check_across_sections(params: Params, source: str) -> None:
    size = params.prepare.image_size
    recipes: dict[str, Recipe] = {"finetune": params.finetune}
    for name, study in params.studies.items():
        try:
            recipes[f"studies.{name}.recipe"] = study.effective_recipe(params.train)
        except ValidationError as error:
            raise InputError(f"{source}: studies.{name}.recipe.{_describe(error)}") from None
        if study.filter_network not in params.networks:
            raise InputError(
                f"{source}: studies.{name}.filter_network: {study.filter_network} is not one of "
                f"networks {list(params.networks)}; add it there or choose one of them"
            )
    for key, recipe in recipes.items():
        crop, padding = recipe.augmentation.crop_size, recipe.augmentation.crop_padding
        if crop is not None and crop > size:
            raise InputError(
                f"{source}: {key}.augmentation.crop_size: {crop} is larger than prepare.image_size {size}; "
                f"give at most {size}"
            )
        if padding >= size:
            raise InputError(f"{source}: {key}.augmentation.crop_padding: {padding} must be below image_size {size}")
        if recipe.workers != "auto" and recipe.simulated_workers % recipe.workers:
            divisors = [d for d in range(1, recipe.simulated_workers + 1) if recipe.simulated_workers % d == 0]
            raise InputError(
                f"{source}: {key}.workers: {recipe.workers} does not divide simulated_workers "
                f"{recipe.simulated_workers}; use one of {divisors} or auto"
            )
    batches = {"finetune.batch_size": (params.finetune.batch_size, params.finetune)}
    for name, study in params.studies.items():
        for batch in study.batch_sizes:
            batches[f"studies.{name}.batch_sizes"] = (batch, recipes[f"studies.{name}.recipe"])
            _check_batch(source, f"studies.{name}.batch_sizes", batch, recipes[f"studies.{name}.recipe"])
    _check_batch(source, "finetune.batch_size", params.finetune.batch_size, params.finetune)


def _check_batch(source: str, key: str, batch: int, recipe: Recipe) -> None:
    workers = recipe.simulated_workers
    if batch % workers or batch // workers < 2:
        raise InputError(
            f"{source}: {key}: {batch} does not split into {workers} simulated workers of 2 images or more; "
            f"use a multiple of {workers} from {2 * workers} on, or another simulated_workers"
        )


def _describe(error: ValidationError) -> str:
    """The first problem as `key.path: value is wrong; mend`."""
    problem = error.errors(include_url=False)[0]
    location = [part for part in problem["loc"] if isinstance(part, int) or not _is_union_tag(part, problem["loc"])]
    key = ".".join(str(part) for part in location) or "(top level)"
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    match problem["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key{_suggestion(location)}; remove it or correct the spelling{others}"
        case "missing":
            return f"{key}: missing; add it{others}"
        case "value_error":
            return f"{key}: {problem['msg'].removeprefix('Value error, ')}{others}"
    value = problem.get("input")
    shown = json.dumps(value, default=str)
    return f"{key}: {shown[:80]} is not allowed: {problem['msg']}{others}"


def _is_union_tag(part: str, location: tuple[int | str, ...]) -> bool:
    """Pydantic puts the chosen member of a union into the location; users never wrote it."""
    index = location.index(part)
    return index > 0 and (location[index - 1] == "schedule" or part in _TYPE_TAGS or part.startswith("literal["))


_TYPE_TAGS = {"float", "int", "str", "constrained-int", "constrained-float", "function-before"}


def _suggestion(location: list[int | str]) -> str:
    """`, did you mean 'x'?` from the keys that the section knows."""
    model: type[BaseModel] | None = Params
    for part in location[:-1]:
        model = _member(model, part) if model is not None else None
    if model is None:
        return ""
    close = difflib.get_close_matches(str(location[-1]), list(model.model_fields), n=1)
    return f", did you mean `{close[0]}`?" if close else f"; known keys: {', '.join(model.model_fields)}"


def _member(model: type[BaseModel], part: int | str) -> type[BaseModel] | None:
    if model is Params and part == "studies":
        return Params
    if model is Params and part not in Params.model_fields:
        return Study
    annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
