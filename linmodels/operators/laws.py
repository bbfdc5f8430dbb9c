"""The laws that every linear operator obeys, as a check to run on an operator of one's own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

_NUM_VECTORS = 3


def check_operator_laws(
    operator: lx.AbstractLinearOperator, *, key: PRNGKeyArray, slack: float = 1.0
) -> None:
    r"""Checks that an operator obeys the laws of linear operators, on random vectors.

    With $A$ the operator, $x$, $y$, $u$ random vectors and $c$ a random number:

    - dtype and shape: those of $Ax$, $A^\top u$ and the matrix are as the structures declare;
    - linear: $A(cx + y) = c\,Ax + Ay$;
    - adjoint: $\langle Ax, u\rangle = \langle x, A^\top u\rangle$;
    - jit: $Ax$ is the same inside and outside of `jax.jit`;
    - vmap: $Ax$ for a stack of $x$ is the same as one by one;
    - as_matrix: its columns are $A e_i$, its rows $A^\top e_i$;
    - double transpose: $(A^\top)^\top x = Ax$.

    It forms the matrix, and takes one product for each of its columns: use it on a small instance.
    Vectors may differ by $16\,\mathrm{eps}\,\sqrt{\mathrm{in} + \mathrm{out}}\,\|A\|_F \|x\|$, with
    eps that of the coarsest dtype and in, out the sizes: rounding errors, with room to spare.

    >>> import jax, jax.numpy as jnp, lineax as lx
    >>> check_operator_laws(lx.MatrixLinearOperator(jnp.ones((3, 2))), key=jax.random.key(0))

    Args:
        operator: the operator, real.
        key: for the random vectors.
        slack: multiplies the tolerance. Raise it for an operator whose products lose digits, to
            cancellation or to products of reduced precision.

    Raises:
        AssertionError: when a law is broken; says which, and by how much.
        ValueError: when the operator has a complex dtype, or no inputs or outputs at all.
    """
    probe = _Probe(operator, key, slack)
    _check_structures(probe)
    _check_linear(probe)
    _check_adjoint(probe)
    _check_jit(probe)
    _check_vmap(probe)
    _check_as_matrix(probe)
    _check_double_transpose(probe)


class _Compiled(NamedTuple):
    stacked: PyTree[Array]
    columns: Array
    matrix: Array


class _Probe:
    """An operator, random vectors, what it makes of them, and how far results may differ."""

    def __init__(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray, slack: float):
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(_structures(operator))]
        if not dtypes or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
            raise ValueError(
                "check_operator_laws needs real floating inputs and outputs, got the structures "
                f"{_structures(operator)}."
            )
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        self.operator = operator
        self.transposed = operator.transpose()
        self.scalar = random.uniform(0.5, 2.0)
        self.inputs = [_normal(random, operator.in_structure()) for _ in range(_NUM_VECTORS)]
        self.cotangents = [_normal(random, operator.out_structure()) for _ in range(_NUM_VECTORS)]
        self.products = [operator.mv(x) for x in self.inputs]
        self.transposed_products = [self.transposed.mv(u) for u in self.cotangents]
        self.compiled_product, self.double_transpose = _compile_products(operator, self.inputs[0])
        self.compiled = _compile(operator, _stack(self.inputs))
        self.compiled_transpose = _compile(self.transposed, _stack(self.cotangents))
        norm = float(np.linalg.norm(np.asarray(self.compiled.matrix, np.float64)))
        eps = max(float(jnp.finfo(dtype).eps) for dtype in dtypes)
        size = operator.in_size() + operator.out_size()
        self.tolerance = slack * 16 * eps * size**0.5 * norm

    def compare(self, law: str, got: PyTree, expected: PyTree, scale: PyTree) -> None:
        """Asserts that two vectors agree to the tolerance times the norm of `scale`."""
        difference = float(np.linalg.norm(_flat(got) - _flat(expected)))
        allowed = self.tolerance * float(np.linalg.norm(_flat(scale)))
        _require(difference <= allowed, law, f"they differ by {difference:.3g} > {allowed:.3g}")


def _check_structures(probe: _Probe) -> None:
    rows, columns = _structures(probe.operator)
    for what, got, expected in (
        ("A x", _structure_of(probe.products[0]), rows),
        ("A^T u", _structure_of(probe.transposed_products[0]), columns),
        ("A^T's output", probe.transposed.out_structure(), columns),
        ("A^T's input", probe.transposed.in_structure(), rows),
        ("as_matrix", _structure_of(probe.compiled.matrix), _matrix_structure(probe.operator)),
    ):
        same = _comparable(got) == _comparable(expected)
        _require(same, f"dtype and shape of {what}", f"it is {got}, declared as {expected}")


def _check_linear(probe: _Probe) -> None:
    c, (x, y, _) = probe.scalar, probe.inputs
    combined = jax.tree.map(lambda x, y: jnp.asarray(c * x + y, x.dtype), x, y)
    expected = c * _flat(probe.products[0]) + _flat(probe.products[1])
    scale = np.concatenate([2 * c * _flat(x), _flat(y)])
    probe.compare("linear: A(cx + y) = c Ax + Ay", probe.operator.mv(combined), expected, scale)


def _check_adjoint(probe: _Probe) -> None:
    x, u = _flat(probe.inputs[0]), _flat(probe.cotangents[0])
    forward = _flat(probe.products[0]) @ u
    backward = x @ _flat(probe.transposed_products[0])
    scale = np.linalg.norm(x) * np.linalg.norm(u)
    probe.compare("adjoint: <Ax, u> = <x, A^T u>", forward, backward, scale)


def _check_jit(probe: _Probe) -> None:
    x, product = probe.inputs[0], probe.products[0]
    probe.compare("jit: A x compiled = A x", probe.compiled_product, product, x)


def _check_vmap(probe: _Probe) -> None:
    for law, compiled, vectors, products in (
        ("vmap: A x stacked = A x one by one", probe.compiled, probe.inputs, probe.products),
        (
            "vmap: A^T u stacked = A^T u one by one",
            probe.compiled_transpose,
            probe.cotangents,
            probe.transposed_products,
        ),
    ):
        probe.compare(law, compiled.stacked, _stack(products), _stack(vectors))


def _check_as_matrix(probe: _Probe) -> None:
    matrix, compiled = probe.compiled.matrix, probe.compiled
    transposed = probe.compiled_transpose
    probe.compare("as_matrix: its columns are A e_i", compiled.columns, matrix, 1.0)
    probe.compare("as_matrix: its rows are A^T e_i", transposed.columns.T, matrix, 1.0)
    law = "as_matrix: that of A^T is the transpose of that of A"
    _require(transposed.matrix.shape == matrix.T.shape, law, f"shape {transposed.matrix.shape}")
    probe.compare(law, transposed.matrix.T, matrix, 1.0)


def _check_double_transpose(probe: _Probe) -> None:
    law, product = "double transpose: (A^T)^T x = Ax", probe.products[0]
    probe.compare(law, probe.double_transpose, product, probe.inputs[0])


def _require(holds: bool, law: str, how: str) -> None:
    # Not `assert`, which `python -O` removes.
    if not holds:
        raise AssertionError(f"The operator breaks the law '{law}': {how}.")


@eqx.filter_jit
def _compile_products(
    operator: lx.AbstractLinearOperator, x: PyTree[Array]
) -> tuple[PyTree[Array], PyTree[Array]]:
    return operator.mv(x), operator.transpose().transpose().mv(x)


@eqx.filter_jit
def _compile(operator: lx.AbstractLinearOperator, inputs: PyTree[Array]) -> _Compiled:
    flat, unravel = eqx.filter_eval_shape(ravel_pytree, operator.in_structure())

    def product(v: Array) -> Array:
        return ravel_pytree(operator.mv(unravel(v)))[0]

    return _Compiled(
        stacked=jax.vmap(operator.mv)(inputs),
        columns=jax.lax.map(product, jnp.eye(operator.in_size(), dtype=flat.dtype)).T,
        matrix=operator.as_matrix(),
    )


def _normal(random: np.random.Generator, structure: PyTree) -> PyTree[Float[Array, "..."]]:
    # Drawn on the host: `jax.random` would compile for each new shape.
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.standard_normal(leaf.shape), leaf.dtype), structure
    )


def _stack(vectors: Sequence[PyTree[Array]]) -> PyTree[Array]:
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *vectors)


def _flat(tree: PyTree) -> Shaped[np.ndarray, " size"]:
    leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([np.zeros(0), *leaves])


def _structures(operator: lx.AbstractLinearOperator) -> tuple[PyTree, PyTree]:
    return operator.out_structure(), operator.in_structure()


def _structure_of(tree: PyTree) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _matrix_structure(operator: lx.AbstractLinearOperator) -> jax.ShapeDtypeStruct:
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(_structures(operator))]
    shape = (operator.out_size(), operator.in_size())
    return jax.ShapeDtypeStruct(shape, jnp.result_type(*dtypes))


def _comparable(structure: PyTree) -> tuple[Any, ...]:
    # Not the structures themselves, which also tell shardings and weak types apart.
    leaves, tree = jax.tree.flatten(structure)
    return tree, [(leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves]
