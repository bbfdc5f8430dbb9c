"""The posterior mean alone, by preconditioned conjugate gradients from near it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from linmodels._batches import Data, example_batch
from linmodels._priors import GaussianPrior
from linmodels._results import RESULTS
from linmodels._whitening import explain_non_finite
from linmodels.krylov import AbstractPreconditioner, IdentityRoot, Known, Progress
from linmodels.methods._equations import primal_equations
from linmodels.methods._look import look_once
from linmodels.methods._method import NOTHING, Hyperparameters, Mean
from linmodels.methods._sketch import sketchable
from linmodels.methods.stopping import MeanRule

QUICK_SIDE = 500
"""Side up to which a dense factorisation anew is as quick as a few dozen passes."""
CLOSEST = 1e-6
"""‖e‖²_H over γ that single precision reaches where eigenvalues spread over five decades; it
reaches `NOTHING` where much the same problem was decomposed, so that few are far from 1."""


def mean_by_products(
    data: Data,
    prior: GaussianPrior,
    alpha: Float[np.ndarray, " L"],
    near: Float[np.ndarray, " r"],
    closeness: float,
    preconditioner: AbstractPreconditioner | None = None,
    max_passes: int = 1_000,
    callback: Callable[[Progress], None] | None = None,
) -> Mean:
    """Solves (I + WᵀW) x̄ = Wᵀv, at unit noise, on the parameters' side.

    Args:
        data: the observations.
        prior: its factor settled.
        alpha: α.
        near: coordinates F⁻¹(θ − μ) to start from, anything at flat parameters.
        closeness: ‖e‖²_H over γ that will do.
        preconditioner: of WᵀW.
        max_passes: products with the data before giving up.
        callback: called with the solver's `Progress` after every pass.
    """
    key = jax.random.key(0)  # of no draws but a preconditioner's sketch
    explain = lambda index: explain_non_finite(data, index)
    model, _ = look_once(data, example_batch(data), prior, 0, key, explain)
    whole = isinstance(preconditioner, Known) and preconditioner.whole
    finest = NOTHING if whole else CLOSEST
    at, closeness = Hyperparameters(alpha, np.ones(1)), max(closeness, finest)
    design, root = model.design(*at), IdentityRoot()
    if preconditioner is not None:
        operator = sketchable(model, design, preconditioner.batches, dual=False)
        root = preconditioner.root(operator, key=key)
    equations = primal_equations(model, at, design, root, closeness)
    equations = equations._replace(rule=MeanRule(model.largest_dimension, closeness))
    begin = jnp.where(design.scale > 0, jnp.asarray(near, design.scale.dtype), 0)[None]
    solution = equations.solve(equations.begin(begin), max_passes, callback)
    units = model.units(design, solution.value, model.crosses(at.beta))
    parameters = model.posterior(units).mean
    size, reached = _size_and_error(solution.progress)
    if solution.result == RESULTS.successful:
        return Mean(units[0], parameters, size, closeness, closeness <= finest)
    return Mean(units[0], parameters, size, reached / max(size, 1.0), True, solution.result)


def _size_and_error(progress: Progress) -> tuple[float, float]:
    """γ or more, and ‖e‖²_H or more, at the end of a solve."""
    measured = progress.measure
    error = np.minimum(progress.error, measured.residual**2)
    return float(measured.signal[0]), float(error[0])
