"""What is chosen, and why."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm


def data(n, d):
    """Never multiplied: a plan looks at sizes."""
    shapes = jax.ShapeDtypeStruct((d,), jnp.float32)
    operator = lx.FunctionLinearOperator(lambda x: jnp.zeros(n) + jnp.sum(x), shapes)
    return lm.Observations(operator, jnp.ones(n))


@pytest.mark.parametrize(
    ("n", "d", "kind", "side"),
    [
        (100_000, 500, lm.Exact, "primal"),
        (500, 100_000, lm.Exact, "dual"),
        (5_000, 100_000, lm.BlockCG, "dual"),
        (100_000, 5_000, lm.BlockCG, "primal"),
        (4_000, 4_000, lm.Exact, "primal"),
    ],
)
def test_method_and_side(n, d, kind, side):
    chosen = lm.plan(data(n, d))
    assert isinstance(chosen.method, kind)
    assert chosen.side == side
    assert f"{n:,} outputs" in chosen.reason
    assert chosen.memory > 0


def test_batches_count_all_rows():
    rows = lm.RowSlices(np.ones((5_000, 3), np.float32), batch_size=1_000)
    batched = lm.Batched(rows, lambda x: data(len(x), 4_500))
    chosen = lm.plan(batched)
    assert isinstance(chosen.method, lm.BlockCG)
    assert "5,000 outputs" in chosen.reason


def test_without_samples_only_exact_is_left():
    assert isinstance(lm.plan(data(5_000, 5_000), num_samples=0).method, lm.Exact)


@pytest.mark.slow
def test_default_beyond_exact_sizes_is_block_cg():
    """A product of 5,000 numbers with their own scale: nothing of side 5,000 is factorised."""
    scale = jnp.linspace(0.5, 2.0, 5_000)
    operator = lx.DiagonalLinearOperator(scale)
    observed = lm.Observations(operator, scale * 1.5, lm.Gaussian(4.0))
    fit = lm.infer(observed, lm.GaussianPrior(1.0), num_samples=4, key=jax.random.key(0))
    assert isinstance(fit.method, lm.BlockCG)
    expected = 4 * scale**2 * 1.5 / (1 + 4 * scale**2)
    # ε² = 1/(8k): the mean's squared error is below γ/(8k) = 5,000/32 in the H-norm.
    error = jnp.sum((1 + 4 * scale**2) * (fit.posterior.mean - expected) ** 2)
    assert error <= fit.effective_dimension / (8 * 4)
    assert (
        fit.solver.certificate <= fit.solver.tolerance
        or fit.solver.estimate <= fit.solver.tolerance
    )
