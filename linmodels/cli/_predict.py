"""`linmodels predict`: a model and a table in, the table with predictions out."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import linmodels as lm
from linmodels._prediction import quantile
from linmodels.cli._encoding import Encoding, Indicators, RowEncoder, predicted_names
from linmodels.cli._errors import InputError
from linmodels.cli._fit import predict_block
from linmodels.cli._model import load_model
from linmodels.cli._progress import track_rows
from linmodels.cli._rows import block_rows, of_size
from linmodels.cli._tables import Table, open_table, table_kind
from linmodels.cli._writers import open_writer


def run(arguments: Namespace) -> None:
    """Carries out `linmodels predict`.

    Raises:
        InputError: see the modules it uses.
    """
    kind = table_kind(arguments.out)
    posterior, encoding = load_model(arguments.model)
    table = open_table(arguments.table, _is_text(encoding, others=kind == "csv"))
    _refuse_columns(table, encoding, arguments.out)
    batches = predictions(posterior, encoding, table, arguments.level)
    with open_writer(arguments.out, kind) as write:
        for batch in track_rows(batches, "predicting", table.num_rows):
            write(batch)
    added = ", ".join(predicted_names(encoding.target))
    print(f"{table.num_rows:,} rows with {added} written to {arguments.out}")


def predictions(
    posterior: lm.Posterior, encoding: Encoding, table: Table, level: float
) -> Iterator[Any]:
    """The table's record batches with the three columns added, in the target's own units."""
    encoder, indicators = RowEncoder(encoding), Indicators.of(encoding)
    width = quantile(level)
    size = min(block_rows(len(encoding.names())), table.num_rows)
    row = 0
    for batch in table.batches(list(table.types), size=size):
        encoded = encoder.encode(batch, row)
        row += len(batch)
        (((numeric, codes), count),) = of_size(iter([encoded]), size)
        mean, std = predict_block(posterior, numeric, codes, indicators)
        mean, std = (
            np.asarray(array, np.float64)[:count] * encoding.target_scale for array in (mean, std)
        )
        mean = mean + encoding.target_centre
        columns = (mean, mean - width * std, mean + width * std)
        for name, column in zip(predicted_names(encoding.target), columns, strict=True):
            batch = batch.append_column(name, column)
        yield batch


def _is_text(encoding: Encoding, *, others: bool) -> Callable[[str], bool]:
    """Which columns of a CSV to take as they are spelt; booleans are spelt in many ways.

    Args:
        encoding: of the model.
        others: whether that is done with columns that the model does not use.
    """
    text = {
        column.name
        for column in encoding.columns
        if column.kind == "categorical" and not {"false", "true"} >= set(column.levels)
    }
    used = set(encoding.sources())
    return lambda name: name in text or (others and name not in used)


def _refuse_columns(table: Table, encoding: Encoding, out: Path) -> None:
    missing = [name for name in encoding.sources() if name not in table.types]
    if missing:
        raise InputError(
            f"{table.path}: the model needs the columns {', '.join(missing)}, which are not there; "
            f"the table has {', '.join(table.types)}."
        )
    present = [name for name in predicted_names(encoding.target) if name in table.types]
    if present:
        raise InputError(f"{table.path} already has a column {present[0]!r}: rename or remove it.")
    if out.exists() and out.samefile(table.path):
        raise InputError(f"--out {out}: it is the table itself; give another name.")
