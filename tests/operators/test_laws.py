"""The law checker passes every operator here and lineax's around them, and catches broken ones."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

from linmodels.operators import (
    AbstractMatrixFreeOperator,
    BlockDiagonal,
    ColumnBlocks,
    Kronecker,
    LowRankUpdate,
    RowBlocks,
    Sparse,
    check_operator_laws,
    from_matrix,
    multi_output,
)


def normal(seed, shape, dtype):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def dense(seed, shape, dtype):
    return lx.MatrixLinearOperator(normal(seed, shape, dtype))


def image(dtype):
    return {"a": jax.ShapeDtypeStruct((2, 2), dtype), "b": jax.ShapeDtypeStruct((1,), dtype)}


def low_rank_update(dtype):
    return LowRankUpdate(*(normal(i, s, dtype) for i, s in enumerate([(4,), (4, 2), (4, 2)])))


def sparse(dtype):
    places = jnp.array([(0, 0), (2, 3), (1, 3), (0, 0), (3, 4)])
    return Sparse(BCOO((normal(0, 5, dtype), places), shape=(3, 4)))


def from_image(dtype):
    return from_matrix(normal(2, (6, 5), dtype), image(dtype), jax.ShapeDtypeStruct((3, 2), dtype))


OPERATORS = {
    "block diagonal": lambda d: BlockDiagonal([dense(0, (3, 4), d), from_image(d)]),
    "low rank": low_rank_update,
    "Kronecker": lambda d: Kronecker(dense(0, (3, 4), d), dense(1, (2, 3), d)),
    "sparse": sparse,
    "row blocks": lambda d: RowBlocks([dense(0, (3, 4), d), sparse(d), low_rank_update(d)]),
    "dense to image": from_image,
}

# Every kind of operator is in one of these, alone or as a part.
COMPOSED = {
    "symmetric low rank": lambda d: LowRankUpdate(jnp.ones(4, d), normal(0, (4, 2), d)),
    "rank zero": lambda d: LowRankUpdate(jnp.ones(4, d), jnp.ones((4, 0), d)),
    "multi-output sparse": lambda d: multi_output(sparse(d), 2),
    "column blocks of row blocks": lambda d: ColumnBlocks([RowBlocks([from_image(d)] * 2)] * 2),
    "dense from scalar": lambda d: from_matrix(
        normal(0, (1, 4), d), out_structure=[jax.ShapeDtypeStruct((), d)]
    ),
    "sum, product, transpose, negative, ratio": lambda d: (
        -(sparse(d) @ low_rank_update(d)).T / 3.0 + dense(0, (4, 3), d)
    ),
    "tagged": lambda d: lx.TaggedLinearOperator(
        LowRankUpdate(jnp.ones(4, d), normal(0, (4, 2), d)), lx.positive_semidefinite_tag
    ),
    "Jacobian block": lambda d: BlockDiagonal(
        [lx.JacobianLinearOperator(lambda x, _: jnp.sin(x[:2] * x[1:]), normal(0, (3,), d))]
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_obey_the_laws_in_float64(name):
    with jax.enable_x64(True):
        check_operator_laws(OPERATORS[name]("float64"), key=jax.random.key(7))


LONG = (
    "multi-output sparse",
    "column blocks of row blocks",
    "sum, product, transpose, negative, ratio",
)
"""These compile for seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in COMPOSED]
)
def test_composed_operators_obey_the_laws_in_float32(name):
    check_operator_laws(COMPOSED[name]("float32"), key=jax.random.key(7))


@pytest.mark.parametrize("name", ["block diagonal", "low rank", "Kronecker", "sparse"])
def test_single_dispatch_keeps_the_matrix(name):
    operator = OPERATORS[name]("float32")
    matrix = operator.as_matrix()
    for transform in (lx.linearise, lx.materialise, lx.conj):
        changed = transform(operator)
        assert isinstance(changed, type(operator))
        np.testing.assert_array_equal(changed.as_matrix(), matrix)
    np.testing.assert_allclose(lx.diagonal(operator), np.diagonal(matrix), rtol=1e-5)
    middle, lower, upper = lx.tridiagonal(operator)
    np.testing.assert_array_equal(middle, np.diagonal(matrix))
    np.testing.assert_array_equal(lower, np.diagonal(matrix, -1))
    np.testing.assert_array_equal(upper, np.diagonal(matrix, 1))
    assert not lx.is_diagonal(operator)
    assert not lx.has_unit_diagonal(operator)


def test_linearise_and_materialise_reach_the_blocks():
    operator = COMPOSED["Jacobian block"]("float32")
    assert isinstance(lx.linearise(operator).blocks[0], lx.FunctionLinearOperator)
    assert isinstance(lx.materialise(operator).blocks[0], lx.PyTreeLinearOperator)


@pytest.mark.parametrize(
    "check", [lx.is_symmetric, lx.is_positive_semidefinite, lx.is_negative_semidefinite]
)
def test_definiteness_passes_through_when_every_part_has_it(check):
    positive = lx.MatrixLinearOperator(jnp.eye(3), lx.positive_semidefinite_tag)
    part = -positive if check is lx.is_negative_semidefinite else positive
    plain = lx.MatrixLinearOperator(jnp.eye(3))
    assert check(BlockDiagonal([part, part]))
    assert not check(BlockDiagonal([part, plain]))
    assert not check(Kronecker(part, plain))
    # The product of two negative semi-definite factors is positive semi-definite.
    assert check(Kronecker(part, part)) == (check is not lx.is_negative_semidefinite)


def test_lineax_solves_with_an_operator():
    left = normal(0, (4, 2), "float32")
    operator = LowRankUpdate(jnp.ones(4), left)
    tagged = lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)
    target = jnp.arange(4.0)
    solved = lx.linear_solve(tagged, target, lx.CG(rtol=1e-6, atol=1e-6)).value
    np.testing.assert_allclose(operator.mv(solved), target, atol=1e-4)
    np.testing.assert_allclose(lx.linear_solve(operator, target).value, solved, atol=1e-4)


class _Broken(AbstractMatrixFreeOperator):
    """A 3 × 2 matrix whose products, transpose and so on may be replaced by wrong ones."""

    matrix: jax.Array
    wrong: str = ""

    def mv(self, vector):
        product = self.matrix @ vector
        if self.wrong == "affine":
            return product + 1e-3
        if self.wrong == "quadratic":
            return product + 1e-3 * product**2
        if self.wrong == "jit" and isinstance(product, jax.core.Tracer):
            return 1.001 * product
        if self.wrong == "dtype":
            return product.astype("float16")
        if self.wrong == "nan":
            return product * jnp.nan
        return product

    def as_matrix(self):
        return self.matrix * (1.001 if self.wrong == "matrix" else 1.0)

    def transpose(self):
        if self.wrong == "twice":
            return _BrokenTranspose(self.matrix.T)
        return _Broken(self.matrix.T * (1.001 if self.wrong == "transpose" else 1.0))

    def in_structure(self):
        return jax.ShapeDtypeStruct((self.matrix.shape[1],), self.matrix.dtype)

    def out_structure(self):
        return jax.ShapeDtypeStruct((self.matrix.shape[0],), self.matrix.dtype)


class _BrokenTranspose(_Broken):
    def transpose(self):
        return _Broken(-self.matrix.T)


class _Wide(_Broken):
    """With the matrix that the base class makes of its products."""

    as_matrix = AbstractMatrixFreeOperator.as_matrix

    def transpose(self):
        return _Wide(self.matrix.T)


@pytest.mark.parametrize("shape", [(2, 300), (300, 2), (3, 3)])
def test_a_matrix_takes_as_many_products_as_the_smaller_side(shape):
    matrix = normal(0, shape, "float32")
    np.testing.assert_allclose(_Wide(matrix).as_matrix(), matrix, rtol=1e-6)
    program = str(jax.make_jaxpr(lambda matrix: _Wide(matrix).as_matrix())(matrix))
    assert "f32[300,300]" not in program


@pytest.mark.parametrize(
    ("wrong", "law"),
    {
        "affine": "linear",
        "quadratic": "linear",
        "transpose": "adjoint",
        "matrix": "as_matrix",
        "twice": "double transpose",
        "jit": "jit",
        "dtype": "dtype and shape of A x",
        "nan": "linear",
    }.items(),
)
def test_checker_catches(wrong, law):
    operator = _Broken(normal(0, (3, 2), "float32"), wrong)
    with pytest.raises(AssertionError, match=f"breaks the law '{law}") as caught:
        check_operator_laws(operator, key=jax.random.key(0))
    assert "differ by" in str(caught.value) or "declared" in str(caught.value)


def test_checker_passes_the_unbroken_operator_and_slack_loosens_it():
    key = jax.random.key(0)
    check_operator_laws(_Broken(normal(0, (3, 2), "float32")), key=key)
    check_operator_laws(_Broken(normal(0, (3, 2), "float32"), "matrix"), key=key, slack=1e4)


def test_checker_refuses_complex():
    with pytest.raises(ValueError, match="complex64"):
        check_operator_laws(lx.MatrixLinearOperator(jnp.eye(2) * 1j), key=jax.random.key(0))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_checker_does_not_mind_the_scale(scale):
    operator = from_matrix(scale * normal(0, (3, 4), "float32"))
    check_operator_laws(operator, key=jax.random.key(0))


def test_operators_may_be_built_and_used_under_vmap_and_jit():
    vector = jnp.arange(4.0)

    def product(matrix):
        operator = RowBlocks([from_matrix(matrix), LowRankUpdate(matrix[0], matrix[1:].T)])
        return operator.mv(vector)

    matrices = normal(0, (5, 3, 4), "float32")
    together = jax.jit(jax.vmap(product))(matrices)
    np.testing.assert_allclose(together, jnp.stack([product(m) for m in matrices]), rtol=1e-4)
