"""Laplace by laplace-torch, on the same weights; dependency group `benchmarks-networks`."""

import importlib.util
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import linmodels_nn as nn
from benchmarks.paper.mnist.lenet import Trained, logits
from benchmarks.paper.mnist.problem import ROWS_AT_ONCE, Problem, jacobians

AGREEMENT = 1e-5
"""Largest difference of logits, over the largest logit, of a network and its port."""
MARGLIK_STEPS, MARGLIK_RATE = 200, 0.1
"""Of laplace-torch's search for the prior precision; 100 and 0.1 are its defaults."""
MISSING = (
    "laplace-torch is not installed (or jax is on a GPU and torch is not), so that its rows are "
    "missing: diagonal, KFAC, last-layer KFAC and subnetwork Laplace. `pip install --group "
    "benchmarks-networks` brings it."
)


class Kind(NamedTuple):
    """One of laplace-torch's posteriors."""

    name: str
    subset: str
    structure: str


DIAGONAL = Kind("diagonal", "all", "diag")
KFAC = Kind("KFAC", "all", "kron")
LAST_LAYER_KFAC = Kind("last-layer KFAC", "last_layer", "kron")
SUBNETWORK = Kind("subnetwork", "subnetwork", "full")
KINDS = DIAGONAL, KFAC, LAST_LAYER_KFAC, SUBNETWORK


def available() -> bool:
    """Whether laplace-torch and torch are installed; on a GPU, if jax is on one."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "laplace")):
        return False
    import torch

    return jax.default_backend() == "cpu" or torch.cuda.is_available()


class Fitted(NamedTuple):
    """A posterior of laplace-torch."""

    laplace: Any

    @property
    def prior_precision(self) -> float:
        """α, one for all parameters."""
        return float(self.laplace.prior_precision.reshape(-1)[0])

    def at(self, alpha: float) -> "Fitted":
        """The same curvature with another prior precision."""
        self.laplace.prior_precision = float(alpha)
        return self

    def learned(self) -> "Fitted":
        """At the prior precision of its own largest marginal likelihood."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.laplace.optimize_prior_precision(
                method="marglik", n_steps=MARGLIK_STEPS, lr=MARGLIK_RATE
            )
        return self

    def covariance(self, inputs: np.ndarray) -> Float[Array, "n c c"]:
        """Of the linearised network's logits, for posteriors of all parameters."""
        import torch

        parts = []
        for start in range(0, len(inputs), ROWS_AT_ONCE):
            batch = _tensor(inputs[start : start + ROWS_AT_ONCE])
            with torch.no_grad():
                rows = self.laplace.backend.jacobians(batch)[0]
                parts.append(self.laplace.functional_variance(rows).cpu().numpy())
        return jnp.asarray(np.concatenate(parts))

    def deviations(self, num_samples: int, size: int, *, seed: int) -> Float[np.ndarray, "k d"]:
        """Of all d' parameters, in the order of the network's leaves, 0 where none are."""
        import torch

        generator = torch.Generator(_device()).manual_seed(seed)
        with torch.no_grad():
            drawn = self.laplace.sample(num_samples, generator=generator)
            left = (drawn - self.laplace.mean).cpu().numpy()
        found = np.zeros((num_samples, size), np.float32)
        found[:, size - left.shape[1] :] = left  # the last layer comes last
        return found


def fitted(problem: Problem, kind: Kind, *, subnetwork: int = 0) -> Fitted:
    """The posterior of a kind at prior precision 1, of the network, ported and checked.

    Args:
        problem: the linear model.
        kind: of posterior.
        subnetwork: how many of the largest weights have a posterior, for a subnetwork's.
    """
    import laplace
    import torch
    from laplace.utils import LargestMagnitudeSubnetMask

    digits = problem.digits
    network = ported(problem.trained, digits.inputs[:ROWS_AT_ONCE])
    arguments = {
        "subset_of_weights": kind.subset,
        "hessian_structure": kind.structure,
        "backend": _backend(problem.linearised),
    }
    if kind == SUBNETWORK:
        chosen = LargestMagnitudeSubnetMask(network, n_params_subnet=subnetwork).select()
        arguments["subnetwork_indices"] = chosen
    held = laplace.Laplace(network, "classification", **arguments)
    labels = torch.from_numpy(digits.labels.astype(np.int64)).to(_device())
    data = torch.utils.data.TensorDataset(_tensor(digits.inputs), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held.fit(torch.utils.data.DataLoader(data, batch_size=ROWS_AT_ONCE))
    return Fitted(held)


def _backend(linearised: nn.Linearised) -> type:
    """The default one, given Jacobians by jax: its own take every output with the whole batch."""
    import torch
    from laplace.curvature import CurvlinopsGGN

    class GivenJacobians(CurvlinopsGGN):
        def jacobians(self, x: Any, enable_backprop: bool = False) -> tuple[Any, Any]:
            rows = next(jacobians(linearised, x.cpu().numpy()))
            chosen = self.subnetwork_indices
            matrix = _tensor(rows) if chosen is None else _tensor(rows)[:, :, chosen]
            with torch.no_grad():
                return matrix, self.model(x)

    return GivenJacobians


def ported(trained: Trained, inputs: np.ndarray) -> Any:
    """The network in torch, in inference mode.

    Its normalisations have no parameters, and laplace-torch takes them as they are.

    Raises:
        ValueError: its logits differ.
    """
    import torch

    layers, network = [], trained.network
    for convolution, (mean, variance) in zip(network.convolutions, trained.statistics, strict=True):
        out, into, size, _ = convolution.weight.shape
        layer = torch.nn.Conv2d(into, out, size, 2, size // 2)
        norm = torch.nn.BatchNorm2d(out, affine=False)
        norm.running_mean.copy_(_tensor(mean))
        norm.running_var.copy_(_tensor(variance))
        layers += [_loaded(layer, convolution), torch.nn.ReLU(), norm]
    dense = torch.nn.Linear(network.dense.in_features, network.dense.out_features)
    pool = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    made = torch.nn.Sequential(*layers, *pool, _loaded(dense, network.dense))
    made = made.eval().to(_device())
    with torch.no_grad():
        theirs = made(_tensor(inputs)).cpu().numpy()
    ours = np.asarray(logits(trained, inputs))
    apart = np.abs(theirs - ours).max() / np.abs(ours).max()
    if not apart <= AGREEMENT:
        raise ValueError(f"The ported network's logits are {apart:.1e} of the largest off.")
    return made


def _loaded(layer: Any, own: Any) -> Any:
    """A layer of torch with our weights."""
    weights = {"weight": _tensor(own.weight), "bias": _tensor(own.bias).reshape(-1)}
    layer.load_state_dict(weights)
    return layer


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(array, np.float32)).to(_device())


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
