"""The command line: `linmodels fit`, `linmodels predict` and `linmodels demo`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from linmodels.cli._errors import InputError

MOST = 2**32 - 1
"""The largest number taken; seeds beyond it would give the draws of a smaller one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    0: done. 2: what was given cannot be used; stderr says why. 130: interrupted.
    """
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except InputError as error:
        print(f"linmodels: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("linmodels: interrupted", file=sys.stderr)
        return 130
    return 0


def _run(arguments: argparse.Namespace) -> None:
    try:
        if arguments.command == "fit":
            from linmodels.cli._fit import run
        elif arguments.command == "predict":
            from linmodels.cli._predict import run
        else:
            from linmodels.cli._demo import run
        run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in ("matplotlib", "pandas", "pyarrow"):
            raise
        raise InputError(
            f"{error.name} is not installed: pip install 'linmodels[cli,plots]'"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="linmodels",
        description="Bayesian linear regression of tables, with learned strengths and error bars.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_predict(commands)
    demo = commands.add_parser("demo", help="forecast ten years of CO2 from data in the package")
    demo.add_argument(
        "--out", type=Path, default=Path("co2-forecast.png"), help="the picture, a PNG"
    )
    demo.add_argument("--seed", type=_natural, default=0, help="of the samples (0)")
    return parser


def _add_fit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    fit = commands.add_parser(
        "fit",
        help="fit a table and report",
        description="Fits a table (.csv, .csv.gz, .parquet, .npz) and prints a report.",
        epilog="Text, booleans and --categorical columns become one indicator a category, "
        "timestamps their hour and weekday; an intercept is added.",
    )
    fit.add_argument("table", type=Path, metavar="TABLE")
    _add_columns(fit)
    add = fit.add_argument
    add("--out", type=Path, metavar="FOLDER", help="where to write the model")
    add("--holdout", type=_fraction, default=0.0, metavar="SHARE", help="rows to test on: 0.1")
    add("--num-samples", type=_natural, default=64, metavar="K", help="samples in the model (64)")
    add("--seed", type=_natural, default=0, help="of the samples and of the held-out rows (0)")
    add("--top", type=_natural, default=10, metavar="K", help="coefficients to print (10)")


def _add_columns(fit: argparse.ArgumentParser) -> None:
    """Flags that say what becomes of the table's columns."""
    add = fit.add_argument
    several = {"nargs": "+", "action": "extend", "default": [], "metavar": "COLUMN"}
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    add("--drop", **several, help="columns to leave out")
    add("--categorical", **several, help="columns of numbers that are categories")
    add("--impute", action="store_true", help="fill missing values: median or most frequent")
    add(
        "--calendar",
        nargs="+",
        choices=("hour", "weekday", "month", "time"),
        default=["hour", "weekday"],
        help="what to use of timestamps (hour weekday); time is the number of days",
    )


def _add_predict(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    predict = commands.add_parser(
        "predict",
        help="add predictions to a table",
        description="Writes the table with TARGET_mean, TARGET_lower and TARGET_upper added.",
    )
    predict.add_argument(
        "model", type=Path, metavar="MODEL", help="the folder that fit --out wrote"
    )
    predict.add_argument("table", type=Path, metavar="TABLE")
    predict.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".csv, .csv.gz, .parquet or .npz"
    )
    predict.add_argument(
        "--level", type=_fraction, default=0.9, help="probability of the interval (0.9)"
    )


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    if value > MOST:
        raise argparse.ArgumentTypeError(f"{text} is too large: at most {MOST}")
    return value
