"""The data embedded in the package."""

import numpy as np

from linmodels.data import load_co2


def test_weeks_follow_each_other_and_59_are_missing():
    data = load_co2()
    assert data.date.shape == data.co2.shape == (2_284,)
    assert set(np.diff(data.date)) == {np.timedelta64(7, "D")}
    assert np.isnan(data.co2).sum() == 59
    assert (str(data.date[0]), str(data.date[-1])) == ("1958-03-29", "2001-12-29")
    assert (data.co2[0], data.co2[-1]) == (316.1, 371.5)
