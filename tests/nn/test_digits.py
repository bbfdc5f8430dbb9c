"""The data embedded in the package of networks."""

import numpy as np

from linmodels_nn.data import load_digits


def test_digits_are_those_of_the_original_file():
    train, held_out = load_digits()
    assert (len(train.labels), len(held_out.labels)) == (1_200, 597)
    images = np.concatenate([train.images, held_out.images])
    labels = np.concatenate([train.labels, held_out.labels])
    assert images.shape == (1_797, 8, 8)
    np.testing.assert_array_equal(images * 16, np.round(images * 16))
    assert (images.min(), images.max()) == (0, 1)
    # Counts of each digit, as the repository states them.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # The third row of the first image.
    assert (16 * images[0, 2]).tolist() == [0, 3, 15, 2, 0, 11, 8, 0]
