"""The Kronecker product of two operators, and one design matrix shared by several outputs."""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from ._matrix_free import AbstractMatrixFreeOperator, require_one_real_dtype, require_operators


class Kronecker(AbstractMatrixFreeOperator):
    r"""The Kronecker product $A \otimes B$, acting on matrices: $V \mapsto A V B^\top$.

    With $A$ of shape `(a_out, a_in)` and $B$ of shape `(b_out, b_in)` it maps arrays of shape
    `(a_in, b_in)` to arrays of shape `(a_out, b_out)`; ravelled row by row, that is the product
    with `jnp.kron(A, B)`, which is never formed (but by `as_matrix`). A product costs `b_in`
    products with $A$ and `a_out` with $B$. It is symmetric, or positive semi-definite, when
    lineax knows both factors to be.

    Args:
        left: $A$, an operator between 1-D arrays.
        right: $B$, an operator between 1-D arrays, of the same dtype.

    Raises:
        ValueError: when a factor is no operator, acts on anything but single 1-D arrays, or
            when the dtypes differ.
    """

    left: lx.AbstractLinearOperator
    right: lx.AbstractLinearOperator

    def __init__(self, left: lx.AbstractLinearOperator, right: lx.AbstractLinearOperator):
        self.left = left
        self.right = right
        require_operators("Kronecker", (left, right))
        for name, factor in (("left", left), ("right", right)):
            for side in (factor.in_structure(), factor.out_structure()):
                if not isinstance(side, jax.ShapeDtypeStruct) or len(side.shape) != 1:
                    raise ValueError(
                        f"Kronecker: `{name}` must act between single 1-D arrays, got the "
                        f"structure {side}; ravel its inputs and outputs."
                    )
        require_one_real_dtype("Kronecker", left, right)

    def mv(self, vector: Float[Array, "a_in b_in"]) -> Float[Array, "a_out b_out"]:
        r"""$A V B^\top$ for $V$ = `vector`."""
        return jax.vmap(self.right.mv)(jax.vmap(self.left.mv, in_axes=1, out_axes=1)(vector))

    def as_matrix(self) -> Float[Array, "a b"]:
        r"""The dense $A \otimes B$, of shape `(a_out * b_out, a_in * b_in)`."""
        return jnp.kron(self.left.as_matrix(), self.right.as_matrix())

    def transpose(self) -> "Kronecker":
        r"""$A^\top \otimes B^\top$."""
        return Kronecker(self.left.T, self.right.T)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """One array of shape `(a_in, b_in)`."""
        return _outer(self.left.in_structure(), self.right.in_structure())

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """One array of shape `(a_out, b_out)`."""
        return _outer(self.left.out_structure(), self.right.out_structure())


def multi_output(design: lx.AbstractLinearOperator, num_outputs: int) -> Kronecker:
    r"""The design of a regression with several outputs that share their features.

    $X \otimes I_m$: coefficients $\theta$ of shape `(p, m)` give outputs $X \theta$ of shape
    `(n, m)`.

    >>> import jax.numpy as jnp, lineax as lx
    >>> design = lx.MatrixLinearOperator(jnp.ones((5, 2)))
    >>> multi_output(design, 3).mv(jnp.ones((2, 3))).shape
    (5, 3)

    Args:
        design: $X$, an operator from arrays of shape `(p,)` to arrays of shape `(n,)`.
        num_outputs: the number of outputs $m$, at least 1.

    Raises:
        ValueError: when `num_outputs` is less than 1, or `design` acts on anything but single
            1-D arrays.
    """
    if num_outputs < 1:
        raise ValueError(f"multi_output: `num_outputs` must be at least 1, got {num_outputs}.")
    require_operators("multi_output", (design,))
    dtype = jax.tree.leaves(design.in_structure())[0].dtype
    return Kronecker(design, lx.IdentityLinearOperator(jax.ShapeDtypeStruct((num_outputs,), dtype)))


def _outer(left: jax.ShapeDtypeStruct, right: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*left.shape, *right.shape), left.dtype)


def _register_checks() -> None:
    for check in (lx.is_symmetric, lx.is_positive_semidefinite):
        check.register(Kronecker, lambda op, check=check: check(op.left) and check(op.right))


_register_checks()
