"""The Jacobian of a network in its parameters, as an operator: products, never the matrix."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from linmodels.operators import AbstractMatrixFreeOperator


class Jacobian(AbstractMatrixFreeOperator):
    r"""$J = \partial f(w, x) / \partial w$ at parameters $w$, for a batch of inputs $x$.

    $Jv$ is a product in forward mode, $J^\top u$ one in reverse mode, of 2 forward passes each.
    Blocks of vectors by `jax.vmap(operator.mv)` share the pass at $w$ itself, so that
    $J^\top B J$ with $k$ vectors costs $1 + 4k$ passes. It holds the activations of one pass,
    and about four of the largest layer for every vector: smaller batches need less.

    >>> import jax.numpy as jnp
    >>> operator = Jacobian(lambda w, x: w**2 * x, jnp.array([3.0]), jnp.array([[1.0], [2.0]]))
    >>> operator.mv(jnp.array([1.0]))
    Array([[ 6.],
           [12.]], dtype=float32)

    Args:
        function: `f(parameters, x)`, of one example, or of a batch where `batched`. As a module,
            its arrays are the operator's, not constants of what is compiled.
        parameters: w, a pytree of real floating arrays of one dtype, that of the outputs.
        inputs: x, a pytree of arrays with a leading axis, the n examples.
        batched: the function takes all examples together. One that takes an example at a time
            can have its matrix formed example by example, n times cheaper.

    Raises:
        ValueError: inputs that share no leading axis, or that the function does not take; mixed or
            complex dtypes.
    """

    function: Callable[[PyTree, PyTree], PyTree]
    parameters: PyTree[Float[Array, "..."]]
    inputs: PyTree[Array]
    batched: bool = eqx.field(static=True)
    _outputs: Any = eqx.field(static=True)
    """leaves and tree of the outputs' structure: as a pytree it need not be hashable"""

    def __init__(
        self,
        function: Callable[[PyTree, PyTree], PyTree],
        parameters: PyTree,
        inputs: PyTree,
        *,
        batched: bool = False,
    ):
        self.function = function
        self.parameters = jax.tree.map(jnp.asarray, parameters)
        self.inputs = jax.tree.map(jnp.asarray, inputs)
        self.batched = batched
        if not batched:
            _require_examples(self.inputs)
        leaves, tree = jax.tree.flatten(_output_shapes(self))
        plain = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        self._outputs = tuple(plain), tree

    @property
    def num_examples(self) -> int | None:
        """n, where the function takes an example at a time; else None."""
        return None if self.batched else len(jax.tree.leaves(self.inputs)[0])

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        r"""$J v$ for $v$ shaped as the parameters, in forward mode."""
        return _forward(self, vector)

    def as_matrix(self) -> Float[Array, "a b"]:
        """The matrix, by whichever of forward and reverse mode takes fewer products."""
        return _matrix(self)

    def transpose(self) -> "TransposedJacobian":
        r"""$J^\top$, in reverse mode."""
        return TransposedJacobian(self)

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """That of the parameters."""
        return jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), self.parameters)

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """That of the outputs for all examples."""
        leaves, tree = self._outputs
        return jax.tree.unflatten(tree, leaves)


class TransposedJacobian(AbstractMatrixFreeOperator):
    r"""$J^\top$: $u \mapsto J^\top u$ for $u$ shaped as the outputs."""

    jacobian: Jacobian

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        r"""$J^\top u$, in reverse mode."""
        return _backward(self.jacobian, vector)

    def as_matrix(self) -> Float[Array, "a b"]:
        """The transpose of the Jacobian's matrix."""
        return self.jacobian.as_matrix().T

    def transpose(self) -> Jacobian:
        r"""$J$."""
        return self.jacobian

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """That of the outputs."""
        return self.jacobian.out_structure()

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """That of the parameters."""
        return self.jacobian.in_structure()


def evaluate(
    function: Callable[[PyTree, PyTree], PyTree], parameters: PyTree, inputs: PyTree, batched: bool
) -> PyTree:
    """The outputs for all examples."""
    if batched:
        return function(parameters, inputs)
    return jax.vmap(function, in_axes=(None, 0))(parameters, inputs)


@eqx.filter_jit
def _forward(jacobian: Jacobian, vector: PyTree) -> PyTree:
    outputs = lambda w: evaluate(jacobian.function, w, jacobian.inputs, jacobian.batched)
    return jax.jvp(outputs, (jacobian.parameters,), (vector,))[1]


@eqx.filter_jit
def _backward(jacobian: Jacobian, vector: PyTree) -> PyTree:
    outputs = lambda w: evaluate(jacobian.function, w, jacobian.inputs, jacobian.batched)
    return jax.vjp(outputs, jacobian.parameters)[1](vector)[0]


@eqx.filter_jit
def _matrix(jacobian: Jacobian) -> Float[Array, "a b"]:
    flat, unravel = ravel_pytree(jacobian.parameters)

    def rows(inputs: PyTree) -> Array:
        outputs = lambda w: ravel_pytree(jacobian.function(unravel(w), inputs))[0]
        count = jax.eval_shape(outputs, flat).size
        return (jax.jacrev if count <= flat.size else jax.jacfwd)(outputs)(flat)

    if jacobian.batched:
        return rows(jacobian.inputs)
    matrices = jax.vmap(rows)(jacobian.inputs)
    # Rows are in the order of ravelled outputs: leaf by leaf, and only then example by example.
    ends, leaves = 0, []
    for leaf in jacobian._outputs[0]:
        start, ends = ends, ends + leaf.size // leaf.shape[0]
        leaves.append(matrices[:, start:ends].reshape(leaf.size, flat.size))
    return jnp.concatenate(leaves)


def _output_shapes(jacobian: Jacobian) -> PyTree[jax.ShapeDtypeStruct]:
    function, inputs, batched = jacobian.function, jacobian.inputs, jacobian.batched
    try:
        return eqx.filter_eval_shape(evaluate, function, jacobian.parameters, inputs, batched)
    except Exception as error:  # every library of networks has its own for shapes that do not fit
        shapes = jax.tree.map(lambda leaf: tuple(leaf.shape), inputs)
        how = "all together" if batched else "one example at a time"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"The network fails on inputs of shapes {shapes}, taken {how}: {reason}"
        ) from error


def _require_examples(inputs: PyTree[Array]) -> None:
    shapes = [leaf.shape for leaf in jax.tree.leaves(inputs)]
    if len({shape[:1] for shape in shapes}) != 1 or shapes[0][:1] in ((), (0,)):
        raise ValueError(
            "Inputs of a network that takes one example at a time need a leading axis of at least "
            f"one example that all share; got shapes {shapes}. batched=True hands them on as they "
            "are."
        )
