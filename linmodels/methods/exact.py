"""Exact inference by dense factorisation of the smaller side."""

from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from linmodels._arrays import is_traced, parameter_structure
from linmodels._batches import Data, example_batch, num_outputs
from linmodels._draws import normal_draws
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._whitening import explain_non_finite, gaussian, whitened_rows
from linmodels.methods._direct import prepare_traced
from linmodels.methods._dual import DualSystem, Rows, columns_of, kernels
from linmodels.methods._mean import mean_by_products
from linmodels.methods._method import NOTHING, AbstractMethod, AbstractSystem, Mean
from linmodels.methods._moments import Moments, Shift, accumulate, least_squares_shift
from linmodels.methods._parameters import (
    ParameterMap,
    drop_rounding,
    parameter_map,
    require_identifiable,
)
from linmodels.methods._primal import PrimalSystem


class Exact(AbstractMethod):
    """Dense posterior: the right answer whenever one side is up to about 4,000.

    Outside jit all sums are float64 on the host and one look at the data serves every α and noise
    precision: primal from the Gram matrix (streamed for `Batched`), dual from the kernel. Under
    jit, vmap or grad a lone `Observations` is solved by QR in its own dtype.

    Args:
        side: "primal" (d' × d') or "dual" (N × N); the smaller where None.
        max_side: largest side to factorise; memory is about 40 bytes times its square.

    Raises:
        ValueError: an unknown side, or both sides larger than `max_side`.
    """

    side: Literal["primal", "dual"] | None = eqx.field(static=True, default=None)
    max_side: int = eqx.field(static=True, default=12_000)

    def __check_init__(self):
        if self.side not in (None, "primal", "dual"):
            raise ValueError(f'side must be "primal", "dual" or None, got {self.side!r}.')

    def prepare(
        self, data: Data, prior: GaussianPrior, *, num_samples: int, key: Array | None
    ) -> AbstractSystem:
        """Looks at the data once; see `AbstractMethod.prepare`.

        Raises:
            ValueError: data that are not finite or not Gaussian, flat columns that are dependent,
                a prior that does not fit, or a problem too large.
        """
        example = example_batch(data)
        gaussian(example.likelihood)
        structure = parameter_structure(example.design.in_structure())
        side, reason = self._choose(data, example)
        if is_traced(prior) or (isinstance(data, Observations) and is_traced(data)):
            return prepare_traced(data, prior, structure, side, reason, num_samples, key)
        noise_key, prior_key = (None, None) if key is None else jax.random.split(key)
        rows = whitened_rows(data, prior.mean, num_samples=num_samples, key=noise_key)
        explain = lambda index: explain_non_finite(data, index)
        build = _primal if side == "primal" else _dual
        return build(rows, prior, structure, reason, num_samples, prior_key, explain)

    def mean(self, data, prior, alpha, near, closeness, similar) -> Mean:
        """Dense, or by conjugate gradients where a similar problem was decomposed."""
        if similar is not None:
            return mean_by_products(data, prior, alpha, near, closeness, similar)
        system = self.prepare(data, prior, num_samples=0, key=None)
        solution = system.solve(alpha, np.ones(1))
        size = float(solution.terms.group_dimension.sum())
        found = solution.coordinates, solution.posterior.mean
        return Mean(*found, size, NOTHING, finest=True, result=solution.result)

    def approach_mode(self, data, prior, precision, start, key) -> Float[np.ndarray, " r"]:
        """The start."""
        return start

    def _choose(self, data: Data, example: Observations) -> tuple[str, str]:
        parameters = example.design.in_size()
        outputs = num_outputs(data, example)
        side = self.side or ("primal" if parameters <= outputs else "dual")
        size = parameters if side == "primal" else outputs
        if size > self.max_side:
            raise ValueError(
                f"Exact would factorise the {side} side of {size} > max_side={self.max_side} "
                f"({parameters} parameters, {outputs} outputs): raise max_side if memory allows."
            )
        why = "as asked" if self.side else "the smaller side"
        text = f"exact, {side}: {parameters:,} parameters, {outputs:,} outputs; {why}"
        return side, text


def _prior_noise(num_samples: int, size: int, key: Array | None) -> Float[np.ndarray, "r k"]:
    if key is None:
        return np.zeros((size, 0))
    return np.asarray(normal_draws(key, (num_samples, size)), np.float64).T


def _primal(rows, prior, structure, reason, num_samples, key, explain) -> PrimalSystem:
    flat = prior.flat_mask(structure)
    moments = accumulate(rows, flat, explain)
    gram = moments.total_gram
    require_identifiable(gram[np.ix_(flat, flat)])
    prior = prior.normalise(_projected_diagonal(gram, moments.shift), structure)
    parameters = parameter_map(prior, structure)
    return PrimalSystem(
        prior=prior,
        reason=reason,
        moments=_through_prior(moments, parameters),
        parameters=parameters,
        prior_noise=_prior_noise(num_samples, len(parameters.flat), key),
    )


def _through_prior(moments: Moments, parameters: ParameterMap) -> Moments:
    """Moments of Φ F."""
    if parameters.root is None:
        return moments
    pull = parameters.pull
    return moments._replace(
        gram=np.stack([pull(pull(g).T) for g in moments.gram]),
        cross=np.stack([pull(c) for c in moments.cross]),
        noise_cross=np.stack([pull(c) for c in moments.noise_cross]),
    )


def _projected_diagonal(gram: np.ndarray, shift: Shift) -> Float[np.ndarray, " d"]:
    """Diagonal of M with flat columns projected out."""
    flat, diagonal = shift.flat, np.diag(gram).copy()
    if not flat.any():
        return diagonal
    cross, inner = gram[flat][:, ~flat], gram[np.ix_(flat, flat)]
    original = diagonal.copy()
    original[~flat] += np.einsum("fp,fp->p", shift.columns, 2 * cross + inner @ shift.columns)
    left = diagonal.copy()
    left[~flat] -= np.einsum("fp,fp->p", cross, np.linalg.solve(inner, cross))
    rounding = 1e2 * np.finfo(float).eps * diagonal
    return np.where(left > rounding, drop_rounding(left, original), 0)


def _dual(rows, prior, structure, reason, num_samples, key, explain) -> DualSystem:
    flat = prior.flat_mask(structure)
    gathered = _gather(rows, flat, explain)
    basis = gathered.design[:, flat].astype(np.float64)
    require_identifiable(basis.T @ basis)
    if prior.normalised:
        squares = [np.sum(block**2, 0) for _, block in columns_of(gathered, None)]
        original = np.einsum("nd,nd->d", gathered.design, gathered.design, dtype=np.float64)
        squares = drop_rounding(np.concatenate(squares), original)
        prior = prior.normalise(squares, structure)
    parameters = parameter_map(prior, structure)
    return DualSystem(
        prior=prior,
        reason=reason,
        rows=gathered,
        kernels=kernels(columns_of(gathered, parameters), parameters, len(gathered.targets)),
        parameters=parameters,
        prior_noise=_prior_noise(num_samples, len(parameters.flat), key),
    )


def _gather(blocks, flat: np.ndarray, explain) -> Rows:
    parts = []
    for index, block in enumerate(blocks):
        if not (np.isfinite(block.design).all() and np.isfinite(block.targets).all()):
            explain(index)
        parts.append(jax.tree.map(np.asarray, block))
    design = np.concatenate([p.design for p in parts])
    targets = np.concatenate([p.targets for p in parts]).astype(np.float64)
    output = np.concatenate([p.output for p in parts])
    rank = np.stack([p.rank for p in parts]).astype(np.float64).sum(0)
    raw_square = np.bincount(output, targets**2, minlength=len(rank))
    shift = least_squares_shift(design, targets, flat)
    if flat.any():
        targets = targets - design[:, flat].astype(np.float64) @ shift.targets
    return Rows(
        design,
        targets,
        np.concatenate([p.noise for p in parts]),
        output,
        rank,
        float(sum(p.log_determinant for p in parts)),
        raw_square,
        shift,
    )
