"""Weekly atmospheric CO2 at the Mauna Loa Observatory, Hawaii, 1958 to 2001."""

import csv
from importlib import resources

import equinox as eqx
import numpy as np
from jaxtyping import Float, Shaped


class WeeklyCO2(eqx.Module):
    """Weeks and their CO2.

    Attributes:
        date: the Saturday of each week, `datetime64[D]`, shape (n,), no week left out.
        co2: mole fraction of CO2 in dry air, parts per million, shape (n,); NaN where a
            week has no measurement.
    """

    date: Shaped[np.ndarray, " n"]
    co2: Float[np.ndarray, " n"]


def load_co2() -> WeeklyCO2:
    """Weekly mean CO2 at Mauna Loa from continuous air samples: 2,284 weeks, 59 of them missing.

    Measured by C. D. Keeling and T. P. Whorf, Scripps Institution of Oceanography, at NOAA's
    observatory; published by NOAA and Scripps, in the public domain.

    >>> load_co2().co2[:2]
    array([316.1, 317.3])
    """
    table = resources.files("linmodels.data").joinpath("co2.csv")
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    date = np.array([row["date"] for row in rows], dtype="datetime64[D]")
    co2 = np.array([float(row["co2"]) if row["co2"] else np.nan for row in rows])
    return WeeklyCO2(date=date, co2=co2)
