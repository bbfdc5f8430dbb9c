"""`linmodels fit`: a table in, a report and a model out."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import linmodels as lm
from linmodels._columns import ColumnScaling, unstandardising_matrix
from linmodels._prediction import quantile
from linmodels.cli._encoding import CODED, Encoding, Indicators, design_operator
from linmodels.cli._errors import InputError
from linmodels.cli._model import refuse_foreign, save_model
from linmodels.cli._progress import Progress
from linmodels.cli._report import (
    Effect,
    HeldOut,
    HeldOutSums,
    held_out_lines,
    print_effects,
    print_lines,
    settings,
)
from linmodels.cli._rows import EncodedRows, observe, of_size, training_mask
from linmodels.cli._survey import Choices, Survey, survey_table
from linmodels.cli._tables import Table, open_table

LEVEL = 0.9


def run(arguments: Namespace) -> None:
    """Carries out `linmodels fit`.

    Raises:
        InputError: see the modules it uses.
    """
    if arguments.out is not None:
        refuse_foreign(arguments.out)
    choices = Choices(
        target=arguments.target,
        drop=tuple(arguments.drop),
        categorical=tuple(arguments.categorical),
        calendar=tuple(arguments.calendar),
        impute=arguments.impute,
    )
    table = open_table(arguments.table, lambda name: name in choices.categorical)
    training = training_mask(arguments.holdout, arguments.seed)
    survey = survey_table(table, choices, training)
    _refuse_empty(survey, arguments.holdout)
    rows = EncodedRows(table, survey.encoding, training)
    fit = fit_rows(rows, survey.encoding, arguments.num_samples, arguments.seed)
    rows.close()
    print_header(table, survey)
    _report(fit, rows, survey, arguments.top)
    if arguments.out is not None:
        save_model(arguments.out, fit.posterior, survey.encoding)
        print(f"\nmodel written to {arguments.out}")


def fit_rows(rows: EncodedRows, encoding: Encoding, num_samples: int, seed: int) -> lm.Fit:
    """The posterior of the standardised columns' coefficients and the intercept, strengths learned.

    The prior is isotropic on the standardised columns. A g-prior would differ for indicators only:
    scaled one by one, a rare category would be given a wide prior and a common one a narrow one,
    where nothing is known that tells them apart.

    Raises:
        InputError: the hyperparameters cannot be learned from these rows.
    """
    width = len(encoding.names())
    data = lm.Batched(rows, observe, Indicators.of(encoding))
    prior = lm.GaussianPrior(flat=np.arange(width + 1) == width)
    progress = Progress("learning")
    report = lambda state: progress.show(
        f"step {state.step}, log evidence {state.log_evidence:,.1f}"
    )
    progress.show(str(lm.plan(data, prior, num_samples)))
    key = jax.random.key(seed)
    try:
        return lm.maximise_evidence(data, prior, num_samples=num_samples, key=key, callback=report)
    except RuntimeError as error:
        raise InputError(f"The fit failed: {error}") from error
    finally:
        progress.close()


def evaluate_held_out(fit: lm.Fit, rows: EncodedRows, encoding: Encoding) -> HeldOut:
    """Log-likelihood, coverage and error on the held-out rows."""
    sums, width = HeldOutSums(), quantile(LEVEL)
    scale = encoding.target_scale
    for mean, std, targets in _held_out_predictions(fit, rows, encoding):
        inside = np.abs(targets - mean) <= width * std
        arrays = map(jnp.asarray, (targets, mean, std))
        log_prob = np.asarray(lm.metrics.gaussian_log_prob(*arrays), np.float64)
        sums.add(log_prob - np.log(scale), inside, (targets - mean).astype(np.float64) * scale)
    return sums.result()


def strongest_effects(posterior: lm.Posterior, encoding: Encoding, count: int) -> list[Effect]:
    """The coefficients that move the prediction most, over the rows as they are.

    A number's coefficient is per unit of its column. A category's is its difference from the
    average row: only differences between categories are determined.
    """
    mean = np.asarray(posterior.mean, np.float64)[:-1]
    centre, scale, spread, blocks = _columns(encoding)
    strongest = np.argsort(-np.abs(mean) * spread / scale, kind="stable")[:count]
    matrix = unstandardising_matrix(ColumnScaling(centre, scale))[strongest]
    for row, column in enumerate(strongest):
        block = blocks[column]
        if block.stop - block.start > 1:
            matrix[row, block] -= centre[block] / scale[block]
    # Units, which float32 need not hold, are put in afterwards.
    units = np.abs(matrix).max(axis=1)
    contrast = posterior.contrast(matrix / units[:, None])
    columns = np.array([contrast.mean, *contrast.interval(LEVEL)], np.float64)
    names, values = encoding.names(), columns * units * encoding.target_scale
    return [
        Effect(names[column], *map(float, value))
        for column, value in zip(strongest, values.T, strict=True)
    ]


def print_header(table: Table, survey: Survey) -> None:
    """Prints what the table is and what becomes of its columns."""
    encoding = survey.encoding
    left_out = (
        f", {survey.unlabelled_rows:,} left out without a target" if survey.unlabelled_rows else ""
    )
    held_out = f", {survey.held_out_rows:,} held out" if survey.held_out_rows else ""
    print(
        f"{table.path.name}: {survey.training_rows:,} rows{held_out}{left_out}; "
        f"target {encoding.target}"
    )
    parts = [f"{c.label} ({len(c.levels)})" if c.levels else c.label for c in encoding.columns]
    shown = ", ".join(parts[:12]) + (f" and {len(parts) - 12} more" if len(parts) > 12 else "")
    print(f"{len(encoding.names()):,} columns and an intercept: {shown}\n")


def _report(fit: lm.Fit, rows: EncodedRows, survey: Survey, top: int) -> None:
    encoding = survey.encoding
    lines = settings(
        fit, encoding.target, encoding.target_scale, survey.training_rows, len(encoding.names())
    )
    alpha = float(np.asarray(fit.prior.alpha))
    lines.insert(
        1, ("prior precision α", f"{alpha:.4g} (isotropic, on standardised columns and target)")
    )
    if survey.held_out_rows:
        lines += held_out_lines(evaluate_held_out(fit, rows, encoding), encoding.target)
    print_lines(lines)
    if top:
        print_effects("strongest coefficients", strongest_effects(fit.posterior, encoding, top))


def _refuse_empty(survey: Survey, fraction: float) -> None:
    if survey.training_rows < 2:
        raise InputError(
            f"Only {survey.training_rows} rows are left to fit; a fit needs at least two."
        )
    if fraction > 0 and survey.held_out_rows == 0:
        raise InputError(
            f"--holdout {fraction:g} held out no row of this table: raise it, or change --seed."
        )


def _held_out_predictions(
    fit: lm.Fit, rows: EncodedRows, encoding: Encoding
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    indicators = Indicators.of(encoding)
    size = len(rows[0][0])
    for (numeric, codes, targets), count in of_size(rows.held_out(), size):
        mean, std = predict_block(fit.posterior, numeric, codes, indicators)
        yield np.asarray(mean)[:count], np.asarray(std)[:count], targets[:count]


@eqx.filter_jit
def predict_block(
    posterior: lm.Posterior, numeric: Any, codes: Any, indicators: Indicators
) -> tuple[jax.Array, jax.Array]:
    """Predictive mean and standard deviation, noise included, of standardised targets."""
    prediction = posterior.predict(design_operator(numeric, codes, indicators))
    return prediction.mean, prediction.std(noise=True)


def _columns(encoding: Encoding) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[slice]]:
    """Centre, scale, standard deviation and block of each design column."""
    centre, scale, spread, blocks = [], [], [], []
    for column in encoding.columns:
        block = slice(len(centre), len(centre) + len(column.names()))
        share = np.array(column.centre)
        centre.extend(column.centre)
        scale.extend([column.scale] * len(share))
        spread.extend(np.sqrt(share * (1 - share)) if column.kind in CODED else [column.scale])
        blocks.extend([block] * len(share))
    return np.array(centre), np.array(scale), np.array(spread), blocks
