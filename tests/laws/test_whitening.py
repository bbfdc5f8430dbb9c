"""√w RΦ of every kind of operator and likelihood is the dense product."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO

import linmodels as lm
from laws import dense
from laws.problems import SHAPES, observations, parts, problems, unit_noise
from laws.tolerances import working_epsilon
from linmodels._whitening import whitened_rows
from linmodels.operators import (
    BlockDiagonal,
    LowRankUpdate,
    RowBlocks,
    Sparse,
    from_matrix,
    multi_output,
)

N = 4


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def structure(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.result_type(float))


def matrix(seed, *shape):
    return lx.MatrixLinearOperator(normal(seed, *shape))


def sparse(seed):
    places = jnp.array([(0, 0), (2, 3), (1, 3), (0, 0), (3, 4)])
    return Sparse(BCOO((normal(seed, 5), places), shape=(N, 5)))


def tree_to_tree(seed):
    theta = {"bias": structure(), "kernel": structure(2, 2)}
    return from_matrix(normal(seed, 3 * N, 5), theta, (structure(N, 2), structure(N)))


def jacobian(seed):
    network = lambda w, x: jnp.tanh(x @ w["hidden"]) @ w["last"]
    weights = {"hidden": normal(seed, 3, 2), "last": normal(seed + 1, 2)}
    return lx.JacobianLinearOperator(network, weights, args=normal(seed + 2, N, 3))


def function(seed):
    x = normal(seed, N, 3)
    return lx.FunctionLinearOperator(lambda t: {"f": x @ t["w"] + t["b"]}, theta_of_function())


def theta_of_function():
    return {"w": structure(3, 2), "b": structure(2)}


OPERATORS = {
    "matrix": lambda s: matrix(s, N, 3),
    "function": function,
    "Jacobian": jacobian,
    "Kronecker": lambda s: multi_output(matrix(s, N, 3), 2),
    "block diagonal": lambda s: BlockDiagonal([matrix(s, N, 2), matrix(s + 1, N, 3)]),
    "sparse": sparse,
    "row blocks": lambda s: RowBlocks([matrix(s, 1, 5), matrix(s + 1, 3, 5)]),
    "low rank": lambda s: LowRankUpdate(normal(s, N), normal(s + 1, N, 2)),
    "composed": lambda s: 2.0 * (matrix(s, N, 3) @ matrix(s + 1, 3, 5)) + sparse(s),
    "trees": tree_to_tree,
}


def like(seed, tree):
    leaves, definition = jax.tree.flatten(tree)
    return jax.tree.unflatten(
        definition, [normal(seed + i, *x.shape) for i, x in enumerate(leaves)]
    )


def ravel(tree):
    return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)])


LONG = ("Jacobian", "Kronecker", "row blocks", "trees")
"""These compile for seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in OPERATORS]
)
@given(seed=st.integers(0, 2**31))
def test_operators(name, seed):
    """Weights and a precision of each entry, an offset and a prior mean."""
    design = OPERATORS[name](seed)
    outputs, inputs = design.out_structure(), design.in_structure()
    targets, offset = like(seed + 10, outputs), like(seed + 20, outputs)
    mean = like(seed + 30, inputs)
    precision = jax.tree.map(lambda v: jnp.asarray(np.square(v)), like(seed + 40, outputs))
    weights = jnp.asarray(np.random.default_rng(seed).uniform(0, 2, N))
    data = lm.Observations(design, targets, lm.Gaussian(precision), offset, weights)
    (rows,) = whitened_rows(data, mean)
    matrix = np.asarray(design.as_matrix(), np.float64)
    column = lambda t: np.asarray(weights).reshape(-1, *[1] * (len(t.shape) - 1))
    spread = jax.tree.map(lambda t: np.broadcast_to(column(t), t.shape), outputs)
    root = np.sqrt(ravel(precision) * ravel(spread))
    residual = ravel(targets) - ravel(offset) - matrix @ ravel(mean)
    sizes = abs(ravel(targets)) + abs(ravel(offset)) + abs(matrix) @ abs(ravel(mean))
    # A product of three roundings; sums of at most 9 terms, with products from as_matrix.
    bound, largest = 32 * working_epsilon() * root, abs(matrix).max()
    wanted = root[:, None] * matrix
    assert (abs(rows.design - wanted) <= bound[:, None] * largest).all()
    assert (abs(rows.targets - root * residual) <= bound * (sizes + largest)).all()
    np.testing.assert_allclose(rows.rank, [ravel(spread).sum()], rtol=32 * working_epsilon())


@given(problem=problems(SHAPES, priors=("isotropic",), extremes=(None, "column", "targets")))
def test_likelihoods(problem):
    """RᵀR of the whitened rows is ΦᵀB₀Φ, and likewise for the targets."""
    data = observations(*problem)
    (rows,) = whitened_rows(data, jnp.asarray(problem.arrays.mean))
    base, rank, constant = unit_noise(problem)
    given_parts = parts(problem)
    design, targets = (np.asarray(x, np.float64) for x in (rows.design, rows.targets))
    half = abs(dense.root(base)) @ abs(given_parts.design)
    # Rows err by 32 ε of their sizes, their products by twice that.
    bound = 64 * working_epsilon() * half.T @ half * len(half)
    information = given_parts.design.T @ base @ given_parts.design
    assert (abs(design.T @ design - information) <= bound).all()
    cross = given_parts.design.T @ base @ given_parts.targets
    size = parts(with_unit_beta(problem)).magnitude
    bound = 64 * working_epsilon() * np.linalg.norm(half, axis=0) * size * len(half)
    assert (abs(design.T @ targets - cross) <= bound).all()
    np.testing.assert_allclose(rows.rank.sum(), rank.sum(), rtol=32 * working_epsilon())
    bound = 64 * working_epsilon() * (1 + np.abs(np.log(base[base > 0])).sum())
    assert abs(float(rows.log_determinant) - constant) <= bound


def with_unit_beta(problem):
    arrays = problem.arrays
    return problem._replace(arrays=arrays._replace(beta=np.ones_like(arrays.beta)))
