"""`python -m pipeline tune NAME [NAME ...]`: search for the settings of a study that train best.

NAME is one of `tuning` in the parameter file. Several searches, such as one per optimizer, run one after another and
have the same number of trials and epochs. Their winners are compared by the accuracy after the last epoch. Trials are
evaluated on the training images flagged `val`, never on test images. Run the same command again to resume. Changed
parameters, images, code, libraries or kinds of device restart the search, and a message says so. To restart it
yourself, `rm -r .work/tune/NAME`. Needs the `tuning` extra.
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec

from pipeline.commands import command_parser
from pipeline.config.params import check_params
from pipeline.config.search_checks import check_space
from pipeline.config.yaml_reading import parse_yaml, read_yaml_text
from pipeline.environment import install_hint
from pipeline.errors import InputError
from pipeline.instruction_set import limit_instructions
from pipeline.locks import file_lock
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import stderr_log
from pipeline.stages.harness import exit_codes, exit_with_dvc


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("tune", __doc__, "params", "data", "work")
    parser.add_argument("names", nargs="+", metavar="NAME", help="one of `tuning` in the parameter file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the searches, write data/tune/NAME/ of each and print the outcome.

    Returns:
        0. Exits with 2 on bad input, 75 after SIGTERM or a signal in a training, and 130 after SIGINT elsewhere.
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        exit_with_dvc()
        # Read once, so that edits during the search do not reach tuned.yaml.
        source, text = str(arguments.params), read_yaml_text(arguments.params)
        params = check_params(parse_yaml(text, source=source), source=source)
        limit_instructions(params.train.isa)
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
            raise InputError(f"tune: needs Optuna; {install_hint('tuning')}")
        # Imported here: Optuna is an extra.
        from pipeline.commands.tune.outputs import check_fair, write_comparison
        from pipeline.commands.tune.run import outcome_lines, run_search

        check_fair({name: params.tuning[name] for name in names})
        data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
        searches = {}
        for name in names:
            with (
                file_lock(work.lock(f"tune@{name}"), f"tune {name}"),
                closing(stderr_log(work.log(f"tune@{name}"))) as log,
            ):
                result = run_search(params, text, name, data, work, log, source=source, compared=len(names) > 1)
                print("\n".join(outcome_lines(result, name, data)), flush=True)
            searches[name] = result
        if len(names) > 1:
            print("\n".join(write_comparison(searches, data)))
    return 0
