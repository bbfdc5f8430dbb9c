"""What the verbs ask of their arguments."""

from typing import Any

from linmodels._arrays import require_integer, require_single_key
from linmodels._batches import Batched
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels.methods import AbstractMethod


def require_arguments(data: Any, prior: Any, method: Any, num_samples: Any, key: Any) -> None:
    """Refuses arguments of the wrong kind, and draws without a key.

    Raises:
        ValueError: as said.
    """
    require_kinds(data, prior, method, num_samples, key)
    if num_samples > 0 and key is None:
        raise ValueError("Drawing deviations needs key=jax.random.key(…); or pass num_samples=0.")


def require_kinds(data: Any, prior: Any, method: Any, num_samples: Any, key: Any) -> None:
    """Refuses arguments of the wrong kind, and a negative number of samples.

    Raises:
        ValueError: as said.
    """
    if not isinstance(data, Observations | Batched):
        raise ValueError(f"data must be Observations or Batched, got {type(data).__name__}.")
    if not isinstance(prior, GaussianPrior | None):
        raise ValueError(f"prior must be a GaussianPrior, got {prior!r}.")
    if not isinstance(method, AbstractMethod | None):
        raise ValueError(f"method must be one such as Exact(), got {method!r}.")
    require_integer(num_samples, "num_samples", minimum=0)
    if key is not None:
        require_single_key(key)
