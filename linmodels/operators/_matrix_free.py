"""The base class of the operators here: what lineax asks of every operator, answered once."""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float


class AbstractMatrixFreeOperator(lx.AbstractLinearOperator):
    """A real linear operator defined by its products, not by a stored matrix.

    Subclass it to write an operator of your own: give `mv`, `transpose`, `in_structure` and
    `out_structure`. `as_matrix` and the single-dispatch functions of lineax (`lineax.diagonal`,
    `lineax.linearise`, ...) then work as they are. `lineax.linearise` and `lineax.materialise`
    apply to the operators held in the fields; the `lineax.is_...` checks answer no, which is
    always safe (register a subclass with `lineax.is_symmetric.register`, say, to answer better).
    `linmodels.operators.check_operator_laws` tells whether the products are right.

    Raises:
        ValueError: when the leaves of the two structures are not all of one real floating dtype.
    """

    def __check_init__(self):
        require_one_real_dtype(type(self).__name__, self)

    def as_matrix(self) -> Float[Array, "a b"]:
        """The matrix, of shape `(out_size, in_size)`, by a product for each column or each row."""
        if self.in_size() <= self.out_size():
            return _columns(self)
        return _columns(self.transpose()).T


def _columns(operator: lx.AbstractLinearOperator) -> Float[Array, "a b"]:
    flat, unravel = eqx.filter_eval_shape(ravel_pytree, operator.in_structure())
    basis = jnp.eye(operator.in_size(), dtype=flat.dtype)
    return jax.vmap(lambda v: ravel_pytree(operator.mv(unravel(v)))[0], out_axes=1)(basis)


def is_operator(x: Any) -> bool:
    """Whether `x` is a lineax operator."""
    return isinstance(x, lx.AbstractLinearOperator)


def require_operators(name: str, operators: Sequence[Any]) -> None:
    """Raises a `ValueError` unless `operators` holds at least one operator and nothing else."""
    if not operators:
        raise ValueError(f"{name} needs at least one block, got an empty sequence.")
    for i, operator in enumerate(operators):
        if not is_operator(operator):
            raise ValueError(
                f"{name}: block {i} must be a lineax operator, got {type(operator).__name__}; "
                "wrap an array in lineax.MatrixLinearOperator."
            )


def require_one_real_dtype(name: str, *operators: lx.AbstractLinearOperator) -> None:
    """Raises a `ValueError` unless all structures share one real floating dtype."""
    structures = [(op.in_structure(), op.out_structure()) for op in operators]
    dtypes = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(structures)})
    if len(dtypes) > 1:
        raise ValueError(
            f"{name} needs a single dtype, got {' and '.join(dtypes)}; cast one to the other."
        )
    for dtype in dtypes:
        if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
            raise ValueError(f"{name} needs a real floating dtype, got {dtype}.")


def _map_operators(transform, operator):
    return jax.tree.map(
        lambda x: transform(x) if is_operator(x) else x,
        operator,
        is_leaf=lambda x: is_operator(x) and x is not operator,
    )


def _diagonal(operator):
    return jnp.diagonal(operator.as_matrix())


def _tridiagonal(operator):
    matrix = operator.as_matrix()
    return tuple(jnp.diagonal(matrix, offset) for offset in (0, -1, 1))


def _register_defaults() -> None:
    # Single dispatch follows inheritance, so registering the base class covers every subclass.
    base = AbstractMatrixFreeOperator
    for transform in (lx.linearise, lx.materialise):
        transform.register(base, functools.partial(_map_operators, transform))
    lx.diagonal.register(base, _diagonal)
    lx.tridiagonal.register(base, _tridiagonal)
    lx.conj.register(base, lambda operator: operator)
    for check in (
        lx.is_symmetric,
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.has_unit_diagonal,
        lx.is_lower_triangular,
        lx.is_upper_triangular,
        lx.is_positive_semidefinite,
        lx.is_negative_semidefinite,
    ):
        check.register(base, lambda operator: False)


_register_defaults()
