"""Error bars for a network that reads digits: `python -m linmodels_nn.demo`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from scipy import ndimage

import linmodels as lm
import linmodels_nn as nn
from linmodels_nn._demo_picture import Picture
from linmodels_nn.data import Digits, load_digits

COMPONENTS, WIDTH = 24, 48
TRAINING_STEPS, BATCH = 1_000, 50
WEIGHT_DECAY = 1.0
"""Precision of the prior that the trained weights are the mode under."""
NUM_SAMPLES = 32
ANGLES = tuple(range(0, 181, 15))
TABULATED = 0, 30, 60, 90
SHOWN = 3
"""Which of the held-out images is turned in the picture: a five."""


class Components(eqx.Module):
    """The directions in which the images vary most.

    Pixels at the border are blank in training: data say nothing of weights that see those alone.
    """

    centre: Float[np.ndarray, " 64"]
    directions: Float[np.ndarray, "c 64"]

    def __call__(self, images: Float[np.ndarray, "n 8 8"]) -> Float[np.ndarray, "n c"]:
        """Coordinates of the images."""
        flat = images.reshape(len(images), -1)
        return ((flat - self.centre) @ self.directions.T).astype(np.float32)


def principal_components(images: Float[np.ndarray, "n 8 8"]) -> Components:
    """The first 24 of these images."""
    flat = images.reshape(len(images), -1)
    centre = flat.mean(0)
    return Components(centre, np.linalg.svd(flat - centre, full_matrices=False)[2][:COMPONENTS])


def train(
    inputs: Float[np.ndarray, "n c"], labels: Int[np.ndarray, " n"], key: Array
) -> eqx.nn.MLP:
    """A network of two hidden layers, by Adam with weight decay."""
    init_key, batch_key = jax.random.split(key)
    network = eqx.nn.MLP(inputs.shape[1], 10, WIDTH, 2, activation=jnp.tanh, key=init_key)
    weights, architecture = eqx.partition(network, eqx.is_inexact_array)
    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, TRAINING_STEPS))

    def loss(weights: eqx.nn.MLP, x: Array, y: Array) -> Array:
        logits = jax.vmap(eqx.combine(weights, architecture))(x)
        fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return fit + WEIGHT_DECAY / 2 / len(inputs) * optax.tree.norm(weights, squared=True)

    def step(carry: tuple, rows: Array) -> tuple[tuple, None]:
        weights, state = carry
        gradient = jax.grad(loss)(weights, jnp.asarray(inputs)[rows], jnp.asarray(labels)[rows])
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(weights, updates), state), None

    batches = jax.random.randint(batch_key, (TRAINING_STEPS, BATCH), 0, len(inputs))
    start = weights, optimiser.init(weights)
    weights, _ = jax.jit(lambda start, batches: jax.lax.scan(step, start, batches)[0])(
        start, batches
    )
    return eqx.combine(weights, architecture)


def turned(images: Float[np.ndarray, "*n 8 8"], angle: int) -> Float[np.ndarray, "*n 8 8"]:
    """Images turned to the left by an angle in degrees."""
    return ndimage.rotate(images, angle, axes=(-1, -2), reshape=False, order=1)


class Scores(NamedTuple):
    """How well classes were predicted.

    Attributes:
        log_likelihood: mean log p(label), in nats.
        calibration_error: ECE; see `lm.metrics.reliability`.
        brier: see `lm.metrics.brier`.
        accuracy: share of labels that were the most probable.
    """

    log_likelihood: float
    calibration_error: float
    brier: float
    accuracy: float


def scores(
    log_likelihood: Float[Array, " n"], probabilities: Float[Array, "n 10"], labels: np.ndarray
) -> Scores:
    """Of the log-likelihood of each label, and the probabilities of all classes."""
    truth = jnp.asarray(labels)
    reliability = lm.metrics.reliability(probabilities, truth)
    return Scores(
        float(jnp.mean(log_likelihood)),
        float(reliability.expected_error),
        float(lm.metrics.brier(probabilities, truth)),
        float(jnp.mean(jnp.argmax(probabilities, axis=1) == truth)),
    )


class Comparison(NamedTuple):
    """Scores at an angle: of the network's own softmax (MAP), and with its error bars."""

    angle: int
    map: Scores
    laplace: Scores


def compare(fitted: nn.Laplace, inputs: np.ndarray, labels: np.ndarray, angle: int) -> Comparison:
    """Both predictions of the same images."""
    prediction = fitted.predict(inputs)
    own = jax.nn.log_softmax(prediction.mean)
    return Comparison(
        angle,
        scores(own[jnp.arange(len(labels)), labels], jnp.exp(own), labels),
        scores(prediction.log_prob(labels), prediction.probabilities(), labels),
    )


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """Lines for people; * marks the better of the two."""
    names = "log-likelihood", "calibration error", "Brier score", "accuracy"
    lines = [" " * 30 + "".join(f"{name:>19}" for name in names)]
    for angle, *both in comparisons:
        better = [max(pair) for pair in zip(*map(_goodness, both), strict=True)]
        title = f"turned by {angle}°" if angle else "held-out images"
        for method, found in zip(("MAP", "Laplace"), both, strict=True):
            marks = ["*" if g == b else " " for g, b in zip(_goodness(found), better, strict=True)]
            cells = (f"{v:>17.3f} {mark}" for v, mark in zip(found, marks, strict=True))
            lines.append(f"{title:<20}{method:<10}" + "".join(cells))
            title = ""
    return lines


def _goodness(found: Scores) -> tuple[float, float, float, float]:
    """More is better."""
    return found.log_likelihood, -found.calibration_error, -found.brier, found.accuracy


def learned(fitted: nn.Laplace) -> list[str]:
    """Lines about the fit."""
    fit = fitted.fit
    size = fitted.linearised.jacobian(jnp.zeros((1, COMPONENTS))).in_size()
    dimension = f"{float(fit.effective_dimension):.0f} ± {float(fit.effective_dimension_error):.0f}"
    return [
        f"method               {fit.reason}",
        f"effective dimension  {dimension} of {size:,} parameters",
        f"log evidence         {float(fit.log_evidence):,.1f} nats (found in {fit.steps} steps)",
        *(f"note                 {flag}" for flag in fit.flags),
    ]


def run(out: Path, seed: int) -> None:
    """Trains, fits, prints the table and draws the picture."""
    started = time.perf_counter()
    train_key, laplace_key = jax.random.split(jax.random.key(seed))
    digits, held_out = load_digits()
    encode = principal_components(digits.images)
    inputs = encode(digits.images)
    print(f"{len(inputs):,} images of digits, 8 × 8 pixels, and {len(held_out.labels)} held out")
    network = train(inputs, digits.labels, train_key)
    fitted = nn.laplace(
        network,
        (inputs, digits.labels),
        lm.Categorical(),
        key=laplace_key,
        num_samples=NUM_SAMPLES,
        callback=_progress,
    )
    print(*learned(fitted), sep="\n")
    found = [
        compare(fitted, encode(turned(held_out.images, angle)), held_out.labels, angle)
        for angle in ANGLES
    ]
    print("", *table([one for one in found if one.angle in TABULATED]), "", sep="\n")
    draw(fitted, encode, held_out, found, out)
    print(f"picture              {out}")
    print(f"time                 {time.perf_counter() - started:.0f} s")


def _progress(state: lm.Plan | lm.EvidenceState) -> None:
    """Says on stderr how far learning is."""
    if isinstance(state, lm.EvidenceState):
        said = f"step {state.step}, log evidence {state.log_evidence:,.1f}"
        print(f"learning: {said}", file=sys.stderr, flush=True)


def draw(
    fitted: nn.Laplace,
    encode: Components,
    held_out: Digits,
    found: Sequence[Comparison],
    out: Path,
) -> None:
    """One image turned, with error bars, beside the scores at every angle."""
    angles = np.arange(0, 181, 5)
    turns = np.stack([turned(held_out.images[SHOWN], angle) for angle in angles.tolist()])
    prediction = fitted.predict(encode(turns))
    picture = Picture(
        turns,
        angles,
        np.asarray(jax.nn.softmax(prediction.mean)),
        np.asarray(jax.nn.softmax(prediction.samples())),
        np.array([one.angle for one in found]),
        np.array([one.map[:2] for one in found]),
        np.array([one.laplace[:2] for one in found]),
    )
    picture.save(out)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration; its exit code is 2 where the picture cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m linmodels_nn.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-nn.png"), help="the picture, a PNG")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and samples (0)")
    arguments = parser.parse_args(argv)
    folder = arguments.out.parent
    if not folder.is_dir():
        print(f"--out {arguments.out}: there is no folder {folder}.", file=sys.stderr)
        return 2
    run(arguments.out, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
