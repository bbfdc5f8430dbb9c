"""(d) How good predictions are, on digits as they were trained on and on others."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import linmodels as lm
from benchmarks import _report
from benchmarks.paper._digits import Digits
from benchmarks.paper.mnist import dense, torch_laplace, training
from benchmarks.paper.mnist.claims import Claim
from benchmarks.paper.mnist.distances import BINS, SET, Scores, scored
from benchmarks.paper.mnist.fidelity import PASSES
from benchmarks.paper.mnist.lenet import Architecture, Trained, logits
from benchmarks.paper.mnist.problem import Problem, flat_deviations

SAMPLES, MEMBERS = 64, 5
SUBNETWORK = 500
"""Largest weights that have a posterior, in subnetwork Laplace."""
IMAGES_AT_ONCE = 500


class Row(NamedTuple):
    """A method by its scores on every set of images."""

    method: str
    alpha: float | None
    scores: dict[str, Scores]


def shifted(test: Digits) -> dict[str, Digits]:
    """Test digits by what was done to them."""
    return {
        "test": test,
        "rotated 20°": test.rotated(20),
        "rotated 40°": test.rotated(40),
        "noisy": test.corrupted(),
    }


class Networks(NamedTuple):
    """What has to be trained for the comparators that are no posteriors of one network."""

    members: list[Trained]
    dropping: Trained


def trained_networks(
    architecture: Architecture, digits: Digits, recipe: training.Recipe
) -> Networks:
    """The members of an ensemble, the network of the other methods first, and one with dropout."""
    make = lambda **about: training.trained(architecture, digits, recipe, **about)
    members = [make(seed=seed) for seed in range(MEMBERS)]
    return Networks(members, make(dropout=training.DROPOUT))


def study(
    problem: Problem,
    gram: Array,
    alphas: dict[str, float],
    networks: Networks,
    sets: dict[str, Digits],
    *,
    key: Array,
) -> tuple[list[Row], lm.Fit]:
    """Scores of all methods, and the fit of ours.

    Args:
        problem: the linear model of the first network.
        gram: M.
        alphas: of the full covariance, by the prior's scale.
        networks: of ensemble and dropout.
        sets: images to score.
        key: of everything drawn.
    """
    fit_key, dense_key, mask_key, score_key = jax.random.split(key, 4)
    rows = []

    def add(method: str, alpha: float | None, draws) -> None:
        scores = {
            name: scored(draws(digits.inputs), digits.labels, key=score_key)
            for name, digits in sets.items()
        }
        rows.append(Row(method, alpha, scores))
        print(*described(rows[-1]), flush=True)

    def posterior(method: str, alpha: float, deviations) -> None:
        held = problem.shaped(deviations)
        add(method, alpha, lambda inputs: _draws(problem, held, inputs))

    add("MAP", None, lambda inputs: logits(problem.trained, inputs)[None])
    each = lambda inputs: jnp.stack([logits(one, inputs) for one in networks.members])
    add(f"ensemble of {MEMBERS}", None, each)
    add("MC dropout", None, lambda inputs: _dropped(networks.dropping, inputs, mask_key))
    if torch_laplace.available():
        for kind in torch_laplace.KINDS:
            size = min(SUBNETWORK, problem.size // 2)
            theirs = torch_laplace.fitted(problem, kind, subnetwork=size).learned()
            drawn = theirs.deviations(SAMPLES, problem.size, seed=0)
            posterior(f"{kind.name} (laplace-torch)", theirs.prior_precision, drawn)
    factors = {"isotropic": jnp.ones(problem.size), "g-prior": dense.g_prior_scale(gram)}
    for scale, alpha in alphas.items():
        held = dense.posterior(gram, factors[scale] / np.sqrt(np.float32(alpha)))
        drawn = held.deviations(SAMPLES, key=dense_key)
        posterior(f"full covariance, {scale}", alpha, drawn)
    about = {"method": lm.BlockCG("primal"), "num_samples": SAMPLES, "key": fit_key}
    ours = problem.learned(lm.GaussianPrior.g_prior(), **about).fit
    name = f"linmodels, {SAMPLES} samples, g-prior"
    posterior(name, float(ours.prior.alpha), flat_deviations(ours))
    return rows, ours


def _draws(problem: Problem, deviations, inputs: np.ndarray) -> Float[Array, "k n c"]:
    """Joint samples of the linearised network's logits, centred on its own."""
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), deviations)
    held = lm.Posterior(nothing, deviations, None, lm.Categorical())
    predict = problem.linearised.predict
    return jnp.concatenate([predict(held, part).samples() for part in _parts(inputs)], axis=1)


def _dropped(trained: Trained, inputs: np.ndarray, key: Array) -> Float[Array, "k n c"]:
    """Logits with dropout, each of whose masks is held for all images."""
    network = eqx.tree_at(lambda n: n.dropout.inference, trained.network, False)
    keys, parts = jax.random.split(key, SAMPLES), _parts(inputs)
    return jnp.concatenate([_dropped_part(network, trained.state, x, keys) for x in parts], 1)


@eqx.filter_jit
def _dropped_part(network, state, inputs: Array, keys: Array) -> Float[Array, "k n c"]:
    one = lambda x, k: network(x, state, k)[0]
    return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(jnp.asarray(inputs), keys)


def _parts(inputs: np.ndarray) -> list[np.ndarray]:
    return [inputs[i : i + IMAGES_AT_ONCE] for i in range(0, len(inputs), IMAGES_AT_ONCE)]


def header(sets: dict[str, Digits]) -> list[str]:
    """Of the table."""
    columns = "log-likelihood", "joint", "ECE"
    return ["method", "α", *(f"{name}: {column}" for name in sets for column in columns)]


def described(row: Row) -> list[str]:
    """A row of the table."""
    cells = []
    for one in row.scores.values():
        cells += [f"{one.log_likelihood:.3f} ± {one.error:.3f}", f"{one.joint:.3f}"]
        cells += [f"{one.calibration:.3f}"]
    return [row.method, "" if row.alpha is None else f"{row.alpha:.3g}", *cells]


def drawn(name: str, rows: list[Row]) -> None:
    """Scores of every method on every set."""
    made, axes = _report.figure(1, 3, (15, 5), sharey=True)
    fields = "log_likelihood", "joint", "calibration"
    titles = "log-likelihood (nats)", "joint log-likelihood (nats a draw)", "ECE"
    for axis, field, title in zip(axes[0], fields, titles, strict=True):
        for place, row in enumerate(rows):
            for colour, one in enumerate(row.scores.values()):
                axis.plot(getattr(one, field), place, "o", color=f"C{colour}")
        axis.set(title=title, yticks=range(len(rows)), yticklabels=[row.method for row in rows])
        axis.grid(axis="y", alpha=0.3)
    for colour, label in enumerate(rows[0].scores):
        axes[0, 2].plot([], [], "o", color=f"C{colour}", label=label)
    axes[0, 2].legend(fontsize=8)
    axes[0, 0].invert_yaxis()
    _report.save_figure(name, made)


def claims(fit: lm.Fit) -> list[Claim]:
    """The fit took few passes at its α."""
    report = fit.solver
    assert report is not None
    text = (
        f"g-prior: {SAMPLES} samples within {PASSES} passes, solver error below Monte Carlo error"
    )
    share = report.estimate / report.tolerance
    measured = f"{report.passes} passes, ε² {share:.2g} of 1/(8k)"
    return [Claim(text, measured, bool(report.passes <= PASSES and share <= 1))]


NOTES = f"""
Mean log-likelihood of an image in nats, with its standard error; joint log-likelihood of sets of
{SET} distinct images drawn {10 * (SET - 1)} times, in nats a draw; ECE with {BINS} bins. All from
{SAMPLES} joint samples, but {MEMBERS} members of the ensemble. MC dropout: a network trained with
dropout at {training.DROPOUT:g} behind each normalisation, whose masks are held over images. Rows of
laplace-torch: the linearised network with samples of its posterior, prior precision by its own
marginal likelihood; last layer and subnetwork (the {SUBNETWORK} largest weights, full covariance)
vary these parameters alone. Full covariance: dense, at the α of its evidence. linmodels:
`linmodels_nn.laplace` with its defaults and block-CG. Standard errors are of one set of images:
methods share it, so that their differences are surer.
"""
