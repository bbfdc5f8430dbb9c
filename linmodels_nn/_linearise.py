"""A trained network, and what a linear model needs of it: outputs, offsets and Jacobians."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

import linmodels as lm
from linmodels_nn.jacobian import Jacobian, evaluate

VECTORS = 8
"""Deviations that pass through the network together."""


class Linearised(eqx.Module):
    r"""A network to first order in its parameters around trained ones $\bar w$.

    $f(\theta, x) \approx f(\bar w, x) + J(x)(\theta - \bar w) = o(x) + J(x)\,\theta$, a linear
    model with the offset $o(x) = f(\bar w, x) - J(x)\bar w$ (Khan et al., 2019; Immer et al.,
    2021). Made by `linearise`.

    Inputs $x$ are an array or a pytree of arrays whose leading axis counts the n examples;
    outputs have that axis too, and else their own shape.

    Attributes:
        function: f(θ, x), of one example, or of a batch where `batched`; frozen parameters and
            state are its own.
        parameters: $\bar w$, shaped as θ: arrays where parameters were chosen, None elsewhere.
        batched: whether the function takes all examples together.
    """

    function: Callable[[PyTree, PyTree], PyTree]
    parameters: PyTree[Float[Array, "..."]]
    batched: bool = eqx.field(static=True)

    def outputs(self, inputs: PyTree) -> PyTree[Float[Array, "n ..."]]:
        r"""The network's own outputs, $f(\bar w, x)$."""
        return _outputs(self.jacobian(inputs))

    def offset(self, inputs: PyTree) -> PyTree[Float[Array, "n ..."]]:
        r"""$o(x) = f(\bar w, x) - J(x)\bar w$, what the linear model adds to $J(x)\theta$."""
        return _offset(self.jacobian(inputs))

    def jacobian(self, inputs: PyTree) -> Jacobian:
        r"""$J(x)$, from θ to the outputs: the design of the linear model.

        Raises:
            ValueError: inputs that share no leading axis; outputs that are not real floats, or of
                another dtype than the parameters.
        """
        return Jacobian(self.function, self.parameters, inputs, batched=self.batched)

    def observations(
        self,
        inputs: PyTree,
        targets: PyTree,
        likelihood: lm.AbstractLikelihood | None = None,
        weights: Any = None,
    ) -> lm.Observations:
        """The linear model of these examples.

        Args:
            inputs: x of n examples.
            targets: y, shaped as the outputs; class numbers where the likelihood takes them.
            likelihood: of y given the outputs; `lm.Gaussian()` where None.
            weights: (n,), how often an example counts.

        Raises:
            ValueError: as `jacobian` and `lm.Observations`; an offset that is not finite, as
                the network's outputs or their gradients are not.
        """
        design = self.jacobian(inputs)
        return lm.Observations(design, targets, likelihood, _offset(design), weights)

    def observe(
        self,
        likelihood: lm.AbstractLikelihood | None = None,
        inputs: PyTree[int] = 0,
        targets: PyTree[int] = -1,
    ) -> "Observe":
        """The second argument of `lm.Batched`, whose batches are tuples of arrays, targets last.

        The network travels with it as an argument of what is compiled. A function that closes over
        the network instead would have it compiled in as constants, at length.

        >>> import equinox as eqx, jax, numpy as np, linmodels as lm
        >>> network = eqx.nn.Linear(2, "scalar", key=jax.random.key(0))
        >>> rows = lm.RowSlices(np.ones((5, 2), "f"), np.zeros(5, "f"), batch_size=2)
        >>> lm.Batched(rows, linearise(network).observe(lm.Gaussian(1.0))).num_observations
        5

        Args:
            likelihood: of the targets; `lm.Gaussian()` where None.
            inputs: where in a batch the network's input is: a number, or a pytree of them shaped
                as the input, such as `{"tokens": 0, "mask": 1}`.
            targets: where its targets are, likewise; -1 is the last array.
        """
        return Observe(self, likelihood, inputs, targets)

    def predict(
        self,
        posterior: lm.Posterior,
        inputs: PyTree,
        *,
        likelihood: lm.AbstractLikelihood | None = None,
        batch_size: int = 256,
    ) -> lm.Prediction:
        """Predictions whose mean is the network's own output, with the posterior's error bars.

        `posterior.predict(linearised.jacobian(x), linearised.offset(x))` has the mean of the
        linear model instead.

        Examples and deviations pass through the network some at a time, so that memory holds the
        activations of `batch_size` examples for 8 of the k deviations, however many there are of
        either: k products with the Jacobian in all.

        Args:
            posterior: of θ.
            inputs: x of new examples.
            likelihood: of the new targets, where it is not that of the fit.
            batch_size: examples that pass through the network together, if it takes one at a time;
                all of them under jit.

        Raises:
            ValueError: a posterior of other parameters; a batch size below 1; outputs that are not
                finite; as `jacobian`.
        """
        if not (isinstance(batch_size, int | np.integer) and batch_size >= 1):
            raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}.")
        nothing = lambda tree: jax.tree.map(jnp.zeros_like, tree)
        none = jax.tree.map(lambda leaf: leaf[:0], posterior.deviations)
        centred = eqx.tree_at(
            lambda p: (p.mean, p.deviations), posterior, (nothing(posterior.mean), none)
        )
        design = self.jacobian(inputs)
        traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((posterior, design)))
        pieces = [(design, None)] if traced else self._pieces(design, batch_size)
        check = (lambda outputs: None) if traced else _require_finite
        check(outputs := _outputs(pieces[0][0]))
        first = centred.predict(pieces[0][0], outputs, likelihood=likelihood)
        drawn = jax.tree.map(
            lambda z, w: jnp.asarray(z, w.dtype), posterior.deviations, design.parameters
        )
        parts = [_pushed(piece, drawn, rows) for piece, rows in pieces]
        outputs, deviations = parts[0] if len(parts) == 1 else _joined(parts)
        check(outputs)
        found = outputs, deviations, design
        return eqx.tree_at(lambda p: (p.mean, p.deviations, p.design), first, found)

    def _pieces(self, whole: Jacobian, batch_size: int) -> list[tuple[Jacobian, int | None]]:
        """Of examples of one shape, the last of them repeated; how many, None where it is all."""
        count = whole.num_examples
        if count is None or count <= batch_size:
            return [(whole, None)]
        inputs, starts = jax.tree.map(np.asarray, whole.inputs), range(0, count, batch_size)
        rows = [np.minimum(np.arange(start, start + batch_size), count - 1) for start in starts]
        piece = self.jacobian(jax.tree.map(lambda leaf: leaf[rows[0]], inputs))  # one is traced
        at = lambda place: jax.tree.map(lambda leaf: jnp.asarray(leaf[place]), inputs)
        return [
            (eqx.tree_at(lambda j: j.inputs, piece, at(place)), min(batch_size, count - start))
            for place, start in zip(rows, starts, strict=True)
        ]


class Observe(eqx.Module):
    """Batches as observations of a linearised network; see `Linearised.observe`."""

    linearised: Linearised
    likelihood: lm.AbstractLikelihood | None
    inputs: PyTree[int]
    targets: PyTree[int]

    def __call__(self, *arrays: Any) -> lm.Observations:
        """The observations of one batch."""
        count = len(arrays)
        inputs, targets = (jax.tree.leaves(tree) for tree in (self.inputs, self.targets))
        if sorted(place % count for place in inputs + targets) != list(range(count)):
            raise ValueError(
                f"A batch has {count} arrays; the network's input is to be made of those at "
                f"{inputs}, its targets of those at {targets}. Say where each one goes by inputs= "
                "and targets=."
            )
        chosen = lambda places: jax.tree.map(lambda place: arrays[place], places)
        return self.linearised.observations(
            chosen(self.inputs), chosen(self.targets), self.likelihood
        )


def linearise(
    network: Callable[..., Any],
    parameters: PyTree = None,
    *,
    state: eqx.nn.State | None = None,
    filter_spec: PyTree = eqx.is_inexact_array,
    batched: bool = False,
) -> Linearised:
    r"""A trained network as a linear model in its parameters.

    An equinox network is called with one example, `network(x)`, or `network(x, state)` if it has a
    state, and is left as it is. Any other network is a function `f(parameters, x)`:

    - `linearise(module.apply, variables, filter_spec={"params": True, "batch_stats": False})` for
      Flax's Linen;
    - `linearise(lambda w, x: nnx.merge(graph, *w)(x), (weights, rest), filter_spec=(True, False))`
      for Flax's NNX, after `graph, weights, rest = nnx.split(module, nnx.Param, ...)`;
    - `linearise(hk.without_apply_rng(hk.transform(f)).apply, weights)` for Haiku.

    >>> import equinox as eqx, jax, jax.numpy as jnp, linmodels as lm
    >>> network = eqx.nn.MLP(1, "scalar", 8, 1, key=jax.random.key(0))
    >>> linearised = linearise(network)
    >>> data = linearised.observations(jnp.ones((3, 1)), jnp.zeros(3), lm.Gaussian(4.0))
    >>> posterior = lm.infer(data, lm.GaussianPrior(1.0), key=jax.random.key(1)).posterior
    >>> linearised.predict(posterior, jnp.ones((2, 1))).std().shape
    (2,)

    Args:
        network: an equinox network, or, with `parameters`, a function `f(parameters, x)`.
        parameters: what the function takes first: any pytree, an equinox network among them.
        state: running statistics and the like of an equinox network, held as they are.
        filter_spec: which parameters are chosen, as for `equinox.partition`: a function of leaves,
            or bools for whole branches. All arrays of floats by default; the others are frozen.
        batched: the network takes all examples at once, and gives outputs for all.

    Raises:
        ValueError: nothing chosen, or what is no real floating array; layers in training mode; a
            state that is missing, or that nothing takes.
    """
    if not callable(network):
        raise ValueError(f"network must be callable, got {type(network).__name__}.")
    _require_inference(network if parameters is None else parameters)
    if parameters is None:
        function, parameters = _caller(network, state), network
    elif state is not None:
        raise ValueError("state is of an equinox network; give a function's with its parameters.")
    else:
        function = network
    # Statistics that a state began with are no parameters.
    parameters = jax.tree.map(_as_array, eqx.nn.delete_init_state(parameters))
    chosen, frozen = eqx.partition(parameters, filter_spec)
    _require_parameters(chosen)
    return Linearised(_Frozen(function, frozen), chosen, batched)


class _Frozen(eqx.Module):
    """A function of all parameters as one of those that were chosen."""

    function: Callable[[PyTree, PyTree], PyTree]
    frozen: PyTree

    def __call__(self, chosen: PyTree, inputs: PyTree) -> PyTree:
        return self.function(eqx.combine(chosen, self.frozen), inputs)


class _WithState(eqx.Module):
    """Calls a network with its state, whose update is dropped."""

    state: eqx.nn.State

    def __call__(self, network: Callable[..., Any], inputs: PyTree) -> PyTree:
        fresh = jax.tree.map(lambda leaf: leaf, self.state)  # a state serves one call
        return network(inputs, fresh)[0]


def _call(network: Callable[..., Any], inputs: PyTree) -> PyTree:
    return network(inputs)


def _caller(network: Callable[..., Any], state: eqx.nn.State | None) -> Callable:
    is_index = lambda node: isinstance(node, eqx.nn.StateIndex)
    has_state = any(map(is_index, jax.tree.leaves(network, is_leaf=is_index)))
    if has_state and state is None:
        raise ValueError(
            "The network has layers with a state, such as BatchNorm: give it by state=."
        )
    if state is not None and not has_state:
        raise ValueError("state was given, but the network has no layer with a state.")
    return _call if state is None else _WithState(jax.tree.map(lambda leaf: leaf, state))


def _require_inference(network: PyTree) -> None:
    """Refuses layers that would take batch statistics or drop at random."""
    for path, layer in _layers(network, ()):
        harmless = isinstance(layer, eqx.nn.Dropout) and np.all(np.asarray(layer.p) == 0)
        if layer.inference is not None and not layer.inference and not harmless:
            name = jax.tree_util.keystr(path) or "network"
            raise ValueError(
                f"{name} is a {type(layer).__name__} in training mode: give "
                "equinox.nn.inference_mode(network)."
            )


def _layers(node: PyTree, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    """All layers with a training mode, and where they are."""
    found = [(path, node)] if hasattr(node, "inference") else []
    is_layer = lambda x: x is not node and hasattr(x, "inference")
    for step, leaf in jax.tree_util.tree_leaves_with_path(node, is_leaf=is_layer):
        if is_layer(leaf):
            found += _layers(leaf, (*path, *step))
    return found


def _as_array(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _require_parameters(chosen: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(chosen)
    if not leaves:
        raise ValueError("No parameters: filter_spec chooses none of the network's arrays.")
    for path, leaf in leaves:
        if not eqx.is_inexact_array(leaf) or jnp.iscomplexobj(leaf):
            what = f"an array of {leaf.dtype}" if eqx.is_array(leaf) else repr(leaf)
            raise ValueError(
                f"filter_spec chooses {jax.tree_util.keystr(path)}, {what}: parameters must be "
                "arrays of real floats."
            )


@eqx.filter_jit
def _outputs(jacobian: Jacobian) -> PyTree:
    return evaluate(jacobian.function, jacobian.parameters, jacobian.inputs, jacobian.batched)


@eqx.filter_jit
def _offset(jacobian: Jacobian) -> PyTree:
    return jax.tree.map(jnp.subtract, _outputs(jacobian), jacobian.mv(jacobian.parameters))


@eqx.filter_jit
def _push(jacobian: Jacobian, block: PyTree) -> PyTree:
    return jax.vmap(jacobian.mv)(block)


def _pushed(
    jacobian: Jacobian, deviations: PyTree, rows: int | None
) -> tuple[PyTree[Float[Any, "..."]], PyTree[Float[Any, "k ..."]]]:
    """Outputs and Jζ of every deviation, of the first rows."""
    outputs, count = _outputs(jacobian), len(jax.tree.leaves(deviations)[0])
    blocks = [
        _push(jacobian, jax.tree.map(lambda z, start=start: z[start : start + VECTORS], deviations))
        for start in range(0, count, VECTORS)
    ]
    blocks = blocks or [jax.tree.map(lambda f: jnp.zeros((0, *f.shape), f.dtype), outputs)]
    pushed = blocks[0] if len(blocks) == 1 else jax.tree.map(lambda *z: jnp.concatenate(z), *blocks)
    if rows is None:
        return outputs, pushed
    return (
        jax.tree.map(lambda leaf: np.asarray(leaf)[:rows], outputs),
        jax.tree.map(lambda leaf: np.asarray(leaf)[:, :rows], pushed),
    )


def _require_finite(outputs: PyTree) -> None:
    """Refuses outputs of examples that are not finite, naming the first."""
    for leaf in jax.tree.leaves(outputs):
        wrong = np.argwhere(~np.isfinite(np.asarray(leaf)))
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            raise ValueError(
                f"The network's output {place} is {float(leaf[place])}: is its input finite?"
            )


def _joined(parts: list[tuple[PyTree, PyTree]]) -> tuple[PyTree, PyTree]:
    """Outputs, and deviations with their leading axis k, of all examples."""
    outputs, deviations = zip(*parts, strict=True)
    along = lambda axis: lambda *leaves: jnp.asarray(np.concatenate(leaves, axis))
    return jax.tree.map(along(0), *outputs), jax.tree.map(along(1), *deviations)
