"""`evidence_path`: the evidence at every α and noise precision."""

from jaxtyping import Array

from linmodels._arguments import require_arguments
from linmodels._batches import Data, example_batch, require_untraced
from linmodels._plan import followed
from linmodels._priors import GaussianPrior
from linmodels.likelihoods import AbstractCurved
from linmodels.methods import AbstractMethod, EvidencePath


def evidence_path(
    data: Data,
    prior: GaussianPrior | None = None,
    *,
    method: AbstractMethod | None = None,
    num_samples: int = 64,
    key: Array | None = None,
) -> EvidencePath:
    """The evidence of one α and one noise precision, for every value, from one look at the data.

    `Exact` decomposes a matrix; `BlockCG` builds one block Krylov space, which does not depend on
    α, and gives standard errors.

    Args:
        data: observations; a known noise precision is multiplied by β.
        prior: `GaussianPrior.g_prior()` by default; its α, if any, is ignored.
        method: as `plan` chooses by default.
        num_samples: random probes that a matrix-free method may use.
        key: of the probes.

    Raises:
        ValueError: several groups or noise precisions, data that do not fit or are not finite, a
            missing key, traced arguments, a likelihood that is not Gaussian.

    >>> import jax.numpy as jnp, lineax as lx
    >>> from linmodels import Observations
    >>> data = Observations(lx.MatrixLinearOperator(jnp.array([[1.0], [2.0]])), jnp.ones(2))
    >>> path = evidence_path(data, GaussianPrior(), num_samples=0)
    >>> path.at(1.0, [1.0, 0.5]).log_evidence.round(4).tolist()
    [-2.9838, -3.336]
    """
    require_arguments(data, prior, method, num_samples, key)
    require_untraced(data, "evidence_path")
    likelihood = example_batch(data).likelihood
    if isinstance(likelihood, AbstractCurved):
        raise ValueError(
            f"An evidence path needs Gaussian noise: the mode with {type(likelihood).__name__} "
            "moves with alpha. Use maximise_evidence."
        )
    method, _ = followed(method, data, prior, num_samples)
    prior = GaussianPrior.g_prior() if prior is None else prior
    return method.prepare(data, prior, num_samples=num_samples, key=key).path
