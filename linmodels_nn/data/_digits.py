"""Handwritten digits, 8 × 8 pixels."""

from importlib import resources

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

TRAINING = 1_200
"""Images to train on; those behind them in the file are held out."""


class Digits(eqx.Module):
    """Images and what they show.

    Attributes:
        images: (n, 8, 8), ink from 0 (none) to 1, float32.
        labels: (n,), the digits 0 to 9.
    """

    images: Float[np.ndarray, "n 8 8"]
    labels: Int[np.ndarray, " n"]


def load_digits() -> tuple[Digits, Digits]:
    """1,200 images to train on and 597 held out, in the order of the original file.

    The test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998),
    UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0: the 1,797
    images that scikit-learn has, too. Changed: the counts of ink, 0 to 16, are divided by 16.

    >>> train, held_out = load_digits()
    >>> train.images.shape, held_out.labels[:5].tolist()
    ((1200, 8, 8), [7, 7, 3, 5, 1])
    """
    path = resources.files("linmodels_nn.data").joinpath("digits.npz")
    with path.open("rb") as file, np.load(file) as arrays:
        images = arrays["images"].astype(np.float32) / 16
        labels = arrays["labels"].astype(np.int32)
    parts = slice(TRAINING), slice(TRAINING, None)
    train, held_out = (Digits(images[part], labels[part]) for part in parts)
    return train, held_out
