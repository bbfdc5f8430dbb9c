"""(c) Strengths of the prior, learned from samples and with the full covariance."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import linmodels as lm
from benchmarks import _report
from benchmarks.paper.mnist import dense, torch_laplace
from benchmarks.paper.mnist.claims import Claim
from benchmarks.paper.mnist.problem import Problem

SAMPLES = 16
START = 1.0
"""The first α of all."""
MAX_STEPS = 30
"""Updates before giving up; with the full covariance a layer's α may still grow then."""
TOLERANCE = 1e-3
"""Largest |log ratio| of the full covariance's updates that counts as settled."""
CAP = 1e8
SCALES = "g-prior", "isotropic"


class Learned(NamedTuple):
    """How one way of learning went."""

    scale: str
    """of the prior"""
    method: str
    path: np.ndarray
    """α of every group before every update and at the end, (steps + 1, L)"""
    dimension: np.ndarray | None
    """γ of every group at the end, (L,)"""
    seconds: float
    flags: tuple[str, ...] = ()
    settled: bool = True

    @property
    def alpha(self) -> np.ndarray:
        """At the end, (L,)."""
        return self.path[-1]


def prior_scale(name: str, gram: Array) -> Array:
    """F, the diagonal of an isotropic prior or of a g-prior."""
    if name == "isotropic":
        return jnp.ones(len(gram), gram.dtype)
    return dense.g_prior_scale(gram)


def with_full_covariance(problem: Problem, gram: Array, scale: str, *, layers: bool) -> Learned:
    """MacKay's updates in dense arithmetic."""
    groups = np.zeros(problem.size, int)
    if layers:
        groups = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(problem.layers)])
    begin = time.perf_counter()
    steps = dense.maximised(
        problem,
        gram,
        prior_scale(scale, gram),
        groups,
        np.full(groups.max() + 1, START),
        max_steps=MAX_STEPS,
        tolerance=TOLERANCE,
        cap=CAP,
    )
    path = np.array([step.alpha for step in steps])
    settled = len(steps) <= MAX_STEPS
    dimension = steps[-1].dimension
    spent = time.perf_counter() - begin
    return Learned(scale, "full covariance", path, dimension, spent, settled=settled)


def with_samples(problem: Problem, scale: str, *, layers: bool, key: Array) -> Learned:
    """The library's own learning, as a user calls it."""
    path, begin = [np.full(4 if layers else 1, START)], time.perf_counter()
    follow = lambda state: path.append(np.asarray(state.alpha))
    kind = lm.GaussianPrior if scale == "isotropic" else lm.GaussianPrior.g_prior
    about = {"method": lm.BlockCG("primal"), "num_samples": SAMPLES, "key": key}
    if layers:
        prior = kind(START, groups=problem.layers)
        at = {"curvature_at": problem.subject.parameters, "max_steps": MAX_STEPS}
        fit = lm.maximise_evidence(problem.data, prior, callback=follow, throw=False, **at, **about)
    else:
        fit = problem.learned(kind(START), callback=follow, **about).fit
    flags = tuple(f"{flag.kind.name.lower()}[{flag.where}]" for flag in fit.flags)
    settled = bool(fit.result == lm.RESULTS.successful)
    spent, dimension = time.perf_counter() - begin, np.asarray(fit.group_dimensions)
    name = f"{SAMPLES} samples"
    return Learned(scale, name, np.array(path), dimension, spent, flags, settled)


def with_laplace_torch(problem: Problem, kind: torch_laplace.Kind) -> Learned:
    """α of the largest marginal likelihood of laplace-torch, at the network's weights."""
    begin = time.perf_counter()
    theirs = torch_laplace.fitted(problem, kind).learned()
    path = np.array([[START], [theirs.prior_precision]])
    return Learned("isotropic", kind.name, path, None, time.perf_counter() - begin)


def study(problem: Problem, gram: Array, *, key: Array) -> Iterator[Learned]:
    """One α and one a layer, with the g-prior and isotropic, one after the other."""
    kinds = torch_laplace.DIAGONAL, torch_laplace.KFAC
    for kind in kinds if torch_laplace.available() else ():
        yield with_laplace_torch(problem, kind)
    for scale in SCALES:
        for layers in (False, True):
            yield with_full_covariance(problem, gram, scale, layers=layers)
            yield with_samples(problem, scale, layers=layers, key=key)


HEADER = ["prior", "method", "α at the end", "γ", "updates", "settled", "flags", "s"]


def described(one: Learned) -> list[str]:
    """A row of the table."""
    layers = len(one.alpha) > 1
    return [
        one.scale + (", one α a layer" if layers else ", one α"),
        one.method,
        ", ".join(f"{alpha:.3g}" for alpha in one.alpha),
        "" if one.dimension is None else ", ".join(f"{gamma:.1f}" for gamma in one.dimension),
        f"{len(one.path) - 1}",
        "yes" if one.settled else "no",
        ", ".join(one.flags),
        f"{one.seconds:.0f}",
    ]


def drawn(name: str, found: list[Learned]) -> None:
    """α by update: one panel for one α, one for layers."""
    made, axes = _report.figure(1, 2, (11, 4))
    for axis, layers in zip(axes[0], (False, True), strict=True):
        for one in (one for one in found if (len(one.alpha) > 1) == layers):
            style = "-" if one.method == "full covariance" else "--"
            colour = "C0" if one.scale == "isotropic" else "C1"
            if "covariance" not in one.method and "samples" not in one.method:
                axis.axhline(one.alpha[0], color="grey", linestyle=":", label=one.method)
                continue
            lines = axis.plot(one.path, style, color=colour)
            lines[0].set_label(f"{one.scale}, {one.method}")
        axis.set(yscale="log", xlabel="updates", title="one α a layer" if layers else "one α")
        if axis.lines:
            axis.legend(fontsize=8)
    axes[0, 0].set_ylabel("α")
    _report.save_figure(name, made)


def claims(found: list[Learned]) -> list[Claim]:
    """The sampled α is that of the full covariance."""
    made = []
    for scale in SCALES:
        of = {one.method: one for one in found if one.scale == scale and len(one.alpha) == 1}
        names = "full covariance", f"{SAMPLES} samples"
        if not all(name in of for name in names):
            continue
        exact, ours = (of[name].alpha[0] for name in names)
        text = f"{scale}: α of {SAMPLES} samples within 5 % of the full covariance's"
        apart = ours / exact - 1
        made.append(
            Claim(text, f"{ours:.4g}, {exact:.4g}: {100 * apart:+.1f} %", abs(apart) <= 0.05)
        )
    return made + [claim for scale in SCALES for claim in _of_layers(found, scale)]


def _of_layers(found: list[Learned], scale: str) -> list[Claim]:
    """The layer that collapses is flagged, and the others' α are those of the full covariance."""
    layers = [one for one in found if one.scale == scale and len(one.alpha) > 1]
    if len(layers) < 2:
        return []
    exact, ours = layers
    place = int(np.argmax(exact.alpha))
    flagged = len(ours.flags) == 1 and f"[{place}]" in ours.flags[0]
    apart = np.delete(ours.alpha / exact.alpha - 1, place)
    worst = apart[np.argmax(np.abs(apart))]
    text = f"{scale}: the layer whose α grows most with the full covariance, {place}, and no other "
    others = f"{scale}: α of the other layers within 10 % of the full covariance's"
    return [
        Claim(text + "is flagged", ", ".join(ours.flags) or "no flag", flagged),
        Claim(others, f"{100 * worst:+.1f} % at most", abs(worst) <= 0.1),
    ]


NOTES = f"""
All start at α = {START:g}. Full covariance: MacKay's updates with γ in dense arithmetic and the
mode by L-BFGS, and with one α secants of these updates. {SAMPLES} samples: `linmodels_nn.laplace`
(with groups `linmodels.maximise_evidence`) and block-CG, which extrapolates every third update.
One α a layer: the three convolutions, then the dense layer. At most {MAX_STEPS} updates. Flags say
which of the layers has a degenerate α; the full covariance's own arithmetic has none, and in
float32 may stop an α that runs away where γ of its layer is a few hundredths, rounding. γ of a
layer is known from {SAMPLES} samples to about √(2/({SAMPLES} γ)), 7 % where it is 25; α is off by
several times that where γ and α‖F⁻¹θ̄‖² of the layer, equal where it settles, change alike with α.
Diagonal and KFAC: α of the largest marginal likelihood of laplace-torch, which takes the network's
own weights for the mode. Seconds contain compilation.
"""
