"""`python -m pipeline tune NAME [NAME ...]`: search for the settings of a study that train best.

NAME is one of `tuning` in the parameter file. Several, such as one for each optimizer, run one after another and are
compared, each with the same number of trials and epochs, by what their winners reach at the last epoch. Trials are
judged on the training images flagged `val`, never on test images. An interrupted search goes on where it stopped;
parameters, images, code, libraries or kinds of device that decide it and have changed start it anew, which is said, as
does `rm -r .work/tune/NAME`. Needs the `tuning` extra.
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec

from pipeline.commands import command_parser
from pipeline.config.params import check_params, parse_params, read_params_text
from pipeline.config.tuning_checks import check_space
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import stderr_log
from pipeline.stages.harness import exit_codes, exit_with_dvc, file_lock


def make_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = command_parser("tune", __doc__, "params", "data", "work")
    parser.add_argument("names", nargs="+", metavar="NAME", help="one of `tuning` in the parameter file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the searches, write data/tune/NAME/ of each and print the outcome.

    Returns:
        0. Ends the process as a stage does where the input is bad (2) or it is asked to end (75 after SIGTERM, 130
        after SIGINT).
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        exit_with_dvc()
        # Read once: who edits the file while the search runs finds none of it in tuned.yaml.
        source, text = str(arguments.params), read_params_text(arguments.params)
        params = check_params(parse_params(text, source=source), source=source)
        names = list(dict.fromkeys(arguments.names))
        for name in names:
            if name not in params.tuning:
                has = f"it has {list(params.tuning)}" if params.tuning else "it has no `tuning` section; add one"
                raise InputError(f"tune {name}: not in {source}; {has}")
            tuning = params.tuning[name]
            check_space(f"{source}: tuning.{name}", tuning, params.studies[tuning.study], params.train)
            if tuning.scheduler == "parallel" and params.dask.scheduler == "none":
                raise InputError(
                    f"tuning.{name}.scheduler: parallel trains on Dask's workers, and dask.scheduler is none; set "
                    "dask.scheduler: local or an address, or scheduler: round_robin (the same result)"
                )
        if find_spec("optuna") is None:
            raise InputError("tune: needs Optuna; pip install -e '.[tuning]'")
        # Optuna is no part of a plain installation.
        from pipeline.commands.tuning.outputs import check_fair, write_comparison
        from pipeline.commands.tuning.run import outcome_lines, run_search

        check_fair({name: params.tuning[name] for name in names})
        data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
        searches = {}
        for name in names:
            with (
                file_lock(work.lock(f"tune@{name}"), f"tune {name}"),
                closing(stderr_log(work.log(f"tune@{name}"))) as log,
            ):
                found = run_search(params, text, name, data, work, log, source=source, compared=len(names) > 1)
                print("\n".join(outcome_lines(found, name, data)), flush=True)
            searches[name] = found
        if len(names) > 1:
            print("\n".join(write_comparison(searches, data)))
    return 0
