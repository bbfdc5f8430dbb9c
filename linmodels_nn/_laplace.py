"""Linearised Laplace: a trained network in, a posterior over its weights out, strengths learned."""

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import linmodels as lm
from linmodels_nn._linearise import Linearised, linearise


class Laplace(eqx.Module):
    """A network with a posterior over its weights; made by `laplace`.

    Attributes:
        linearised: the network as a linear model.
        fit: of that: strengths, evidence, effective dimension, flags.
    """

    linearised: Linearised
    fit: lm.Fit

    @property
    def log_evidence(self) -> Float[Array, ""]:
        """log p(y), in nats."""
        return self.fit.log_evidence

    def predict(
        self,
        inputs: PyTree,
        *,
        likelihood: lm.AbstractLikelihood | None = None,
        batch_size: int = 256,
    ) -> lm.Prediction:
        """Predictions centred on the network's own outputs; see `Linearised.predict`.

        `.probabilities()` and `.rate()` average over samples, `.samples()` are joint draws,
        `.std(noise=True)` is of new targets.

        Raises:
            ValueError: as `Linearised.predict`.
        """
        return self.linearised.predict(
            self.fit.posterior, inputs, likelihood=likelihood, batch_size=batch_size
        )

    def sample(self, inputs: PyTree, *, noise: bool = False, key: Array | None = None) -> PyTree:
        """k joint draws of the outputs, with a leading axis k: `predict(inputs).samples()`.

        Args:
            inputs: x of new examples.
            noise: whether to draw new targets, for `lm.Gaussian` only.
            key: of the noise.

        Raises:
            ValueError: as `predict`; noise without a key.
        """
        return self.predict(inputs).samples(noise, key=key)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fit to one file, without the network; see `linmodels.save`.

        Raises:
            ValueError: the fit holds what cannot be saved, such as a callback of its method.
        """
        # As lists of leaves, for classes of others are never looked up.
        lm.save(_Saved(_mapped(self.fit, jax.tree.leaves), _digest(self.linearised)), path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], network: Any, *, state: eqx.nn.State | None = None
    ) -> "Laplace":
        """Reads what `save` wrote, for the same network.

        Args:
            path: the file.
            network: as given to `laplace`.
            state: likewise.

        Raises:
            ValueError: the file is damaged or holds something else; the network has parameters of
                other shapes, or other weights or another state.
        """
        linearised = _as_linearised(network, state)
        saved = lm.load(path, _Saved)
        _require_shapes(saved.fit, linearised)
        structure = jax.tree.structure(linearised.parameters)
        fit = _mapped(saved.fit, lambda leaves: jax.tree.unflatten(structure, leaves))
        if saved.digest != _digest(linearised):
            raise ValueError(
                "The fit was to other weights or another state of this network: give those."
            )
        return cls(linearised, fit)


def laplace(
    network: Any,
    data: tuple[PyTree, Any] | Sequence[tuple[Any, Any]],
    likelihood: lm.AbstractLikelihood | None = None,
    *,
    key: Array,
    state: eqx.nn.State | None = None,
    prior: lm.GaussianPrior | None = None,
    method: lm.AbstractMethod | None = None,
    num_samples: int = 64,
    batch_size: int = 256,
    tolerance: float = 1e-3,
    callback: Callable[[Any], None] | None = None,
    throw: bool = True,
) -> Laplace:
    r"""Error bars for a trained network: linearised Laplace with its strengths learned.

    The network near its weights is a linear model, whose evidence decides prior and noise strengths
    (MacKay, 1992); curvatures of other likelihoods than `Gaussian` are taken at the network's own
    outputs (Immer et al., 2021; Antorán et al., 2023).

    >>> import equinox as eqx, jax, numpy as np
    >>> network = eqx.nn.MLP(1, "scalar", 4, 1, key=jax.random.key(0))
    >>> x = np.linspace(-1, 1, 8, dtype="f")[:, None]
    >>> fitted = laplace(network, (x, np.sin(3 * x[:, 0])), key=jax.random.key(1))
    >>> fitted.predict(x).std(noise=True).shape
    (8,)

    Args:
        network: an equinox network of one example in inference mode, or what `linearise` made of
            any other.
        data: inputs and targets of all examples, as a pair; or a sequence of batches such as
            `lm.RowSlices(inputs, targets, batch_size=256)`, pairs of arrays (two of them as a
            list: a tuple of two is taken for inputs and targets).
        likelihood: of the targets; `lm.Gaussian()`, its noise learned, where None.
        key: of the draws.
        state: of the network's layers, where they have one.
        prior: `lm.GaussianPrior.g_prior()` where None; a given α is the start.
        method: of inference; as `lm.plan` chooses where None.
        num_samples: k, the deviations to draw.
        batch_size: examples that pass through the network together, where data are a pair.
        tolerance: as for `lm.maximise_evidence`: by that much α‖θ̄‖² may differ from γ, relatively.
        callback: called with the `lm.Plan` before anything runs, where no method is given, and
            with the `lm.EvidenceState` after every update; `print` is one.
        throw: raise where the result is not successful.

    Raises:
        ValueError: as `linearise`, `Linearised.observations` and `lm.maximise_evidence`.
        FitError: strengths that do not settle, a mode that was not found; see `throw`.
    """
    linearised = _as_linearised(network, state)
    observed = _observed(linearised, data, likelihood, batch_size)
    if callback is not None and method is None:
        callback(lm.plan(observed, prior, num_samples))
    curved = isinstance(likelihood, lm.likelihoods.AbstractCurved)
    fit = lm.maximise_evidence(
        observed,
        prior,
        method=method,
        num_samples=num_samples,
        key=key,
        tolerance=tolerance,
        curvature_at=linearised.parameters if curved else None,
        callback=callback,
        throw=throw,
    )
    return Laplace(linearised, fit)


def _as_linearised(network: Any, state: eqx.nn.State | None) -> Linearised:
    if not isinstance(network, Linearised):
        return linearise(network, state=state)
    if state is not None:
        raise ValueError("state was given, but a linearised network has its own.")
    return network


def _observed(
    linearised: Linearised, data: Any, likelihood: lm.AbstractLikelihood | None, batch_size: int
) -> lm.Observations | lm.Batched:
    if not (isinstance(data, tuple) and len(data) == 2):
        return lm.Batched(data, linearised.observe(likelihood))
    inputs, targets = data
    _refuse_two_batches(linearised, inputs, targets)
    leaves, structure = jax.tree.flatten((inputs, targets))
    for leaf in leaves:
        if not hasattr(leaf, "shape"):
            raise ValueError(
                f"Inputs and targets must be arrays, or trees of arrays; {leaf!r} is among them: "
                "give np.asarray(x, np.float32) in the place of a list."
            )
    if len(leaves[0]) <= batch_size:
        return linearised.observations(inputs, targets, likelihood)
    rows = lm.RowSlices(*leaves, batch_size=batch_size)
    places = jax.tree.unflatten(structure, range(len(leaves)))
    return lm.Batched(rows, linearised.observe(likelihood, *places))


def _refuse_two_batches(linearised: Linearised, inputs: Any, targets: Any) -> None:
    """Refuses a pair of batches, which looks like inputs and targets with parts."""
    if not (isinstance(inputs, tuple | list) and isinstance(targets, tuple | list)):
        return
    try:
        linearised.jacobian(inputs)
    except ValueError as error:
        raise ValueError(
            "data is a tuple of two, inputs and targets, but the network does not take the first. "
            "Give batches as a list: [(inputs, targets), (inputs, targets)]."
        ) from error


class _Saved(eqx.Module):
    """What `Laplace.save` writes."""

    fit: lm.Fit
    digest: str
    """of the network's arrays"""


def _mapped(fit: lm.Fit, change: Callable[[Any], Any]) -> lm.Fit:
    """The fit with all that is shaped as θ changed."""
    shaped = lambda fit: (
        fit.posterior.mean,
        fit.posterior.deviations,
        fit.prior.mean,
        fit.prior.flat,
        fit.prior.groups,
    )
    changed = tuple(None if part is None else change(part) for part in shaped(fit))
    return eqx.tree_at(shaped, fit, changed, is_leaf=lambda part: part is None)


def _require_shapes(fit: lm.Fit, linearised: Linearised) -> None:
    """Refuses the fit, its leaves in lists, of a network of other shapes."""
    fitted = [leaf.shape for leaf in jax.tree.leaves(fit.posterior.mean)]
    given = [leaf.shape for leaf in jax.tree.leaves(linearised.parameters)]
    if fitted != given:
        raise ValueError(
            f"The fit was of parameters of shapes {fitted}, the network's have {given}."
        )


def _digest(linearised: Linearised) -> str:
    """SHA-256 of all its arrays: chosen and frozen parameters, and state."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(linearised, eqx.is_array)):
        random = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if random else leaf)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
