"""MNIST digits from `LINMODELS_DATA`: as they are, and moved away from what was trained on."""

import gzip
import os
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import scipy.ndimage

MEAN, STD = np.float32(0.1307), np.float32(0.3081)
"""Of a pixel of the training digits, in 0 … 1."""
NOISE = 0.2
"""Standard deviation of the noise that corrupts pixels, in 0 … 1."""


class Digits(NamedTuple):
    """Images (n, 28, 28) in 0 … 1, float32, and their classes (n,), int32."""

    images: np.ndarray
    labels: np.ndarray

    @property
    def inputs(self) -> np.ndarray:
        """Standardised, with a channel: (n, 1, 28, 28)."""
        return ((self.images - MEAN) / STD)[:, None]

    def at(self, rows: np.ndarray) -> "Digits":
        """Some of them."""
        return Digits(self.images[rows], self.labels[rows])

    def rotated(self, degrees: float) -> "Digits":
        """All of them, counter-clockwise."""
        turned = scipy.ndimage.rotate(self.images, degrees, (2, 1), reshape=False, order=1)
        return Digits(turned.astype(np.float32), self.labels)

    def corrupted(self, seed: int = 0) -> "Digits":
        """With Gaussian noise on every pixel, cut off at 0 and 1."""
        draws = np.random.default_rng(seed).standard_normal(self.images.shape, np.float32)
        return Digits(np.clip(self.images + NOISE * draws, 0, 1, dtype=np.float32), self.labels)


def digits(part: Literal["train", "t10k"], count: int | None = None) -> Digits:
    """The first digits of a part, all where None."""
    folder = os.environ.get("LINMODELS_DATA")
    if not folder:
        sys.exit("LINMODELS_DATA is not set: it names the folder that holds mnist/*-ubyte.gz.")
    read = lambda name: gzip.decompress((Path(folder) / "mnist" / name).read_bytes())
    images = np.frombuffer(read(f"{part}-images-idx3-ubyte.gz"), np.uint8, offset=16)
    images = images.reshape(-1, 28, 28)[:count] / np.float32(255)
    labels = np.frombuffer(read(f"{part}-labels-idx1-ubyte.gz"), np.uint8, offset=8)[:count]
    return Digits(images, labels.astype(np.int32))
