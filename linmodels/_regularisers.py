"""`regularisers`: random ones, with which least squares gives posterior samples."""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from linmodels._arguments import require_arguments
from linmodels._arrays import parameter_structure, shaped_like
from linmodels._batches import Data, example_batch
from linmodels._expansion import expanded, prior_mean
from linmodels._priors import GaussianPrior
from linmodels._products import Factor
from linmodels._whitening import explain_non_finite
from linmodels.likelihoods import AbstractCurved
from linmodels.methods import look_once, pull


class Regularisers(NamedTuple):
    r"""Where penalties are centred whose least squares are deviations from the posterior mean.

    $\zeta = \arg\min_\theta \tfrac12\|\theta\|^2_M + \tfrac12\|\theta - \theta^n\|^2_A =
    H^{-1} A\,\theta^n$ is a draw from $N(0, H^{-1})$, $H = A + M$.

    Attributes:
        prior: with the scale of a g-prior put in.
        draws: θ⁰ ~ N(0, A⁻¹), shaped as θ with a leading axis k.
        targets: θⁿ = θ⁰ + A⁻¹ΦᵀRᵀu, u ~ N(0, I), likewise.
    """

    prior: GaussianPrior
    draws: PyTree
    targets: PyTree


def regularisers(
    data: Data,
    prior: GaussianPrior,
    *,
    num_samples: int = 64,
    key: Array,
    curvature_at: PyTree = None,
) -> Regularisers:
    """Draws the randomness of posterior samples, in one pass (a g-prior takes another, as do other
    likelihoods than `Gaussian`).

    For solvers and optimisers of your own (Papandreou & Yuille 2010; Antorán et al. 2023, L′):
    with the key, the prior's scale and the curvature of an `infer` theirs are its deviations.

    Args:
        data: observations with known noise.
        prior: with known α and no flat parameters.
        num_samples: k.
        key: of the draws.
        curvature_at: θ at which the curvature of another likelihood than `Gaussian` is taken, and
            the g-prior's scale; the prior mean where None.

    Raises:
        ValueError: unknown hyperparameters, flat parameters, a missing key, data that do not fit or
            are not finite.

    >>> import jax, jax.numpy as jnp, lineax as lx
    >>> from linmodels import Gaussian, Observations
    >>> design = lx.MatrixLinearOperator(jnp.array([[1.0], [2.0]]))
    >>> data = Observations(design, jnp.array([1.0, 1.0]), Gaussian(1.0))
    >>> drawn = regularisers(data, GaussianPrior(1.0), num_samples=8, key=jax.random.key(0))
    >>> (drawn.targets / 6).shape  # H⁻¹Aθⁿ, as H = 1 + 5 and A = 1
    (8, 1)
    """
    require_arguments(data, prior, None, num_samples, key)
    example = example_batch(data)
    structure = parameter_structure(example.design.in_structure())
    if prior.alpha is None or example.likelihood.learn:
        raise ValueError("alpha and the noise precision must be known: learn them first.")
    if prior.flat_mask(structure).any():
        raise ValueError("Flat parameters have no regularisers: give a prior without flat.")
    if isinstance(example.likelihood, AbstractCurved):
        at = prior_mean(prior, structure) if curvature_at is None else curvature_at
        data = expanded(data, shaped_like(at, structure, "curvature_at", "θ"))
        example = example_batch(data)
    explain = lambda index: explain_non_finite(data, index)
    model, _ = look_once(data, example, prior, num_samples, key, explain)
    design = model.design(np.broadcast_to(prior.alpha, model.groups[1]), np.ones(1))
    draws = model.prior_draws()[:-1]
    targets = draws + pull(design, model.crosses(np.ones(len(model.sums.rank)))[:-1])
    return Regularisers(
        model.prior, *(_parameters(model.factor, design.scale * x) for x in (draws, targets))
    )


@eqx.filter_jit
def _parameters(factor: Factor, units: Array) -> PyTree:
    return jax.vmap(factor.parameters)(units)
