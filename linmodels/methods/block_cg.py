"""Matrix-free inference: all deviations and the mean by block conjugate gradients."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from linmodels._batches import Data, example_batch, num_outputs
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._whitening import explain_non_finite, gaussian
from linmodels.krylov import AbstractPreconditioner, Progress
from linmodels.methods._look import look_once
from linmodels.methods._mean import mean_by_products
from linmodels.methods._method import AbstractMethod, AbstractSystem, Mean, required_key
from linmodels.methods._sketch import require_batches
from linmodels.methods._solver import ConjugateGradients
from linmodels.methods.block_system import BlockSystem


class BlockCG(AbstractMethod):
    """Posterior samples and mean by products alone, for data and parameters of any size.

    All k deviations and the mean are solved in one block, so that each pass over the data serves
    every one of them, and the block finds the large eigenvalues together. Effective dimension and
    log determinant are estimated from the same run, with standard errors.

    Args:
        side: "primal" (blocks of d' parameters) or "dual" (of N outputs); the smaller where None.
        tolerance: ε², the mean squared error of a deviation in the H-norm over γ; 1/(8k) where
            None. With several groups passes go on until the error is as small a share of the
            smallest γ_l, as far as passes and precision allow.
        max_passes: products with the data before giving up.
        callback: called with the solver's `Progress` after every pass, in the preconditioner's
            coordinates where there is one.
        preconditioner: one such as `linmodels.krylov.Nystrom(100)`, sketched anew at every solve;
            worth its passes where few samples are wanted or the spectrum falls slowly. Where None,
            what takes many solves of one curvature sketches it once, in a pass with 320 vectors
            (fewer where they would have more than 2²⁶ entries): the search of a mode where the
            curvature is held, on the parameters' side also α of several groups or noise of several
            outputs. So does a solve that has made twice as many products and has not ended, where
            eigenvalues are so large that rounding may hide small ones: above 4e5 in float32.

    Raises:
        ValueError: an unknown side, a tolerance outside (0, 1), or max_passes below 1.
    """

    side: Literal["primal", "dual"] | None = eqx.field(static=True, default=None)
    tolerance: float | None = eqx.field(static=True, default=None)
    max_passes: int = eqx.field(static=True, default=1_000)
    callback: Callable[[Progress], None] | None = eqx.field(static=True, default=None)
    preconditioner: AbstractPreconditioner | None = None

    def __check_init__(self):
        if self.side not in (None, "primal", "dual"):
            raise ValueError(f'side must be "primal", "dual" or None, got {self.side!r}.')
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}.")
        if self.max_passes < 1:
            raise ValueError(f"max_passes must be at least 1, got {self.max_passes}.")

    def prepare(
        self, data: Data, prior: GaussianPrior, *, num_samples: int, key: Array | None
    ) -> AbstractSystem:
        """Looks at the data in up to three passes; see `AbstractMethod.prepare`.

        Raises:
            ValueError: data that are not finite or not Gaussian, flat columns that are dependent,
                a prior that does not fit, no samples, arguments that are traced, or a
                preconditioner that is to look at batches which are not there.
        """
        key = required_key("BlockCG", data, prior, num_samples, key)
        example = example_batch(data)
        learn_noise = gaussian(example.likelihood).learn
        explain = lambda index: explain_non_finite(data, index)
        seen, error = look_once(data, example, prior, num_samples, key, explain)
        side, reason = self._choose(data, seen.factor.size, example, error)
        require_batches(self.preconditioner, data, dual=side == "dual")
        tolerance = 1 / (8 * num_samples) if self.tolerance is None else self.tolerance
        sketch = jax.random.fold_in(key, 2)  # 0 and 1 are u's and z's
        limits = tolerance, self.max_passes, ConjugateGradients(self.callback, sketch)
        about = seen.prior, reason, seen, side, learn_noise
        return BlockSystem(*about, *limits, self.preconditioner, sketch)

    def mean(self, data, prior, alpha, near, closeness, similar) -> Mean:
        """By conjugate gradients on the parameters' side, preconditioned if all else is there."""
        example = example_batch(data)
        primal = self._choose(data, example.design.in_size(), example, 0.0)[0] == "primal"
        chosen = similar or (self.preconditioner if primal else None)
        limits = self.max_passes, self.callback
        return mean_by_products(data, prior, alpha, near, closeness, chosen, *limits)

    def approach_mode(self, data, prior, precision, start, key) -> Float[np.ndarray, " r"]:
        """The start."""
        return start

    def _choose(self, data: Data, size: int, example: Observations, error: float):
        outputs = num_outputs(data, example)
        side = self.side or ("primal" if size <= outputs else "dual")
        why = "as asked" if self.side else "the shorter vectors"
        reason = f"block-CG, {side}: {size:,} parameters, {outputs:,} outputs; {why}"
        if error > 0:
            reason += f"; g-prior scales from random signs, squares ± {100 * error:.0f} %"
        return side, reason
