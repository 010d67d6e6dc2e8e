"""data/tune/<search>/: tables, figures, and the winner as a parameter file."""

from pathlib import Path
from typing import Any

from pipeline.artifacts.atomic import write_text
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv
from pipeline.commands.tuning.page import page
from pipeline.config.params import Params, check_params, parse_params, read_params_text
from pipeline.config.tuning import lay_values
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.tuning.results import Found
from viz.yaml_text import with_value


def write_outputs(found: Found, params: Params, params_file: Path, name: str, data: DataPaths) -> None:
    """Write everything, provenance last.

    Raises:
        InputError: the parameter file has changed while the search ran, or is written in a way that cannot be edited.
    """
    tuning = found.tuning
    write_csv(data.leaderboard(name), found.leaderboard())
    write_csv(data.tuning_curves(name), found.curves())
    write_json(data.tuning_summary(name), found.summary())
    write_text(data.tuning_page(name), page(found, name))
    write_text(data.tuned(name), tuned_text(read_params_text(params_file), found, name, source=str(params_file)))
    study = params.studies[tuning.study]
    arms = [] if study.arms[0] == "full" else [data.kept(study.filter_network)]
    write_provenance(
        data.tuning_provenance(name),
        stage=f"tune@{name}",
        parameters={
            "tuning": tuning.model_dump(mode="json", exclude={"way"}),
            "study": study.model_dump(mode="json"),
            "train": params.train.model_dump(mode="json"),
        },
        inputs=[data.images("train"), data.manifest("train"), *arms],
        outputs=[
            data.leaderboard(name),
            data.tuning_curves(name),
            data.tuning_summary(name),
            data.tuning_page(name),
            data.tuned(name),
        ],
    )


def tuned_text(text: str, found: Found, name: str, *, source: str) -> str:
    """The text of a parameter file with the winner's values in the study, and not a byte changed beside them.

    Raises:
        InputError: `source`, whose text it is, has changed or has the study's keys in an anchor.
    """
    winner = found.outcome.winner
    assert winner is not None
    tree: dict[str, Any] = parse_params(text, source=source)
    try:
        study = tree["studies"][found.tuning.study]
    except (KeyError, TypeError):
        raise InputError(f"{source}: has changed while the search ran; start the search again") from None
    lay_values(study, found.values[winner])
    tuned = with_value(text, ["studies", found.tuning.study], study)
    if parse_params(tuned, source=source) != tree:
        raise InputError(
            f"{source}: studies.{found.tuning.study} shares keys with others by an anchor; write them out and start "
            "the search again"
        )
    check_params(tree, source=str(name))
    return tuned
