"""What is sketched at one α and preconditions at any other changes passes, not answers."""

import dataclasses

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from laws.tolerances import working_epsilon
from linmodels._laplace import prepared
from linmodels.methods import BlockCG, _sketch, block_system
from linmodels.methods._mean import mean_by_products

SIZE, K = 400, 16
GROUPS = np.arange(SIZE) % 3
KEY = jax.random.key(0)
ALPHA, BETA = np.array([1.0, 100.0, 10.0]), np.ones(1)


def diagonal_problem():
    """Eigenvalues 1e6/i², the small ones of as much use as the large ones where α is small."""
    rng = np.random.default_rng(0)
    root = 1e3 / np.arange(1.0, SIZE + 1)
    targets = root * rng.standard_normal(SIZE) + rng.standard_normal(SIZE)
    design = lx.DiagonalLinearOperator(jnp.asarray(root, jnp.float32))
    return lm.Observations(design, jnp.asarray(targets, jnp.float32), lm.Gaussian(1.0)), root**2


def system_of(data, counted=None):
    method = BlockCG("primal", callback=None if counted is None else counted.append)
    prior = lm.GaussianPrior(groups=GROUPS)
    return method.prepare(data, prior, num_samples=K, key=KEY)


@pytest.mark.slow
def test_the_same_draws_in_fewer_passes(monkeypatch):
    """Both are within ε²γ of the exact draws in the H-norm, the weakest group's share of it."""
    monkeypatch.setattr(_sketch, "SKETCHED", 160)
    data, values = diagonal_problem()
    counted, passes, found = [], [], []
    system = system_of(data, counted)
    for _ in range(2):  # with nothing carried, then with what `evaluate` has left
        counted.clear()
        found.append(system.solve(ALPHA, BETA))
        passes.append(len(counted))
        system.evaluate(ALPHA, BETA)
    one, other = (np.asarray(solution.posterior.deviations, np.float64) for solution in found)
    hessian = ALPHA[GROUPS] + values
    apart = np.sum(hessian * (one - other) ** 2, axis=1).mean()
    gamma = np.sum(values / hessian)
    assert apart <= 4 * gamma / (8 * K)
    assert passes[1] <= passes[0] / 2
    first, second = (solution.terms for solution in found)
    exact = np.bincount(GROUPS, values / hessian)
    for terms in (first, second):
        assert (np.abs(terms.group_dimension - exact) <= 5 * terms.group_error).all()
    errors = np.hypot(first.log_evidence_error, second.log_evidence_error)
    assert abs(first.log_evidence - second.log_evidence) <= 4 * errors


@pytest.mark.slow
def test_a_mean_in_fewer_passes(monkeypatch):
    """As close as asked, and asked no closer than without what is known."""
    monkeypatch.setattr(_sketch, "SKETCHED", 160)
    data, values = diagonal_problem()
    counted, passes = [], []
    similar = system_of(data).for_similar(ALPHA, BETA)
    near, prior = np.zeros(SIZE), lm.GaussianPrior(groups=GROUPS)
    hessian = ALPHA[GROUPS] + values
    exact = np.sqrt(values) * np.asarray(data.targets, np.float64) / hessian
    for known in (None, similar):
        counted.clear()
        about = {"preconditioner": known, "callback": counted.append}
        mean = mean_by_products(data, prior, ALPHA, near, 1e-5, **about)
        passes.append(len(counted))
        error = np.asarray(mean.parameters, np.float64) - exact
        assert error @ (hessian * error) <= 4e-5 * mean.size
        assert not mean.finest
    assert passes[1] <= passes[0] / 10


def test_nothing_is_carried_without_room(monkeypatch):
    """Fewer pairs where there are many parameters, none where a block finds as many."""
    data, _ = diagonal_problem()
    system = system_of(data)
    for room, rank in ((30, 20), (K, None)):
        monkeypatch.setattr(_sketch, "CARRIED_ENTRIES", room * SIZE)
        found = block_system.carried(system.model, system._information, BETA, key=KEY)
        assert (None if found is None else len(found.pairs.basis)) == rank


@pytest.mark.law
@pytest.mark.parametrize("flat", [False, True])
def test_of_full_rank_leaves_a_multiple_of_one(flat):
    """P^{-½}(I + WᵀW)P^{-½} at an α that is far from where the sketch was made."""
    rng = np.random.default_rng(1)
    design = rng.standard_normal((40, 12)) * 10.0 ** rng.uniform(-1, 1, 12)
    groups, where = np.repeat([0, 1], 6), np.arange(12) == (0 if flat else -1)
    data = lm.Observations(
        lx.MatrixLinearOperator(jnp.asarray(design, float)),
        jnp.asarray(rng.standard_normal(40), float),
        lm.Gaussian(1.0),
    )
    prior = lm.GaussianPrior(groups=groups, flat=where if flat else None)
    system = BlockCG("primal").prepare(data, prior, num_samples=2, key=KEY)
    alpha = np.array([1e-2, 1e3])
    root = system.for_similar(alpha, BETA).known
    if flat:
        basis = np.linalg.qr(design[:, :1])[0]
        design = design - basis @ (basis.T @ design)
    white = design * np.where(where, 0, alpha[groups] ** -0.5)
    hessian = np.eye(12) + white.T @ white
    inverse = np.asarray(root.divide(jnp.eye(12)), np.float64)
    # Eigenvalues are known to a few spacings of the largest, beside 1.
    rounding = 1e3 * working_epsilon() * np.linalg.eigvalsh(hessian)[-1]
    left = np.linalg.eigvalsh(inverse @ hessian @ inverse)[int(flat) :]
    assert left[-1] / left[0] <= 1 + max(rounding, 1e-3)


@pytest.mark.slow
def test_outputs_of_different_noise(monkeypatch):
    """Two outputs, one of 1e6 times the noise precision: it is looked at as much as it will tell.

    A sketch at equal precisions would know the directions of the other output alone.
    """
    monkeypatch.setattr(_sketch, "SKETCHED", 160)
    rng = np.random.default_rng(3)
    half, precision = SIZE // 2, np.array([1.0, 1e6])
    values = 1e6 / np.arange(1.0, half + 1) ** 2  # of both, at their own precisions
    root = np.sqrt(values / precision[:, None])
    noise = rng.standard_normal((2, half)) / np.sqrt(precision)[:, None]
    targets = root * rng.standard_normal((2, half)) + noise
    design = lx.DiagonalLinearOperator(jnp.asarray(root.T, jnp.float32))
    targets, likelihood = jnp.asarray(targets.T, jnp.float32), lm.Gaussian(per_output=True)
    data = lm.Observations(design, targets, likelihood)
    counted, passes = [], []
    method = BlockCG("primal", callback=counted.append)
    system = method.prepare(data, lm.GaussianPrior(), num_samples=K, key=KEY)
    for _ in range(2):
        counted.clear()
        system.solve(np.ones(1), precision)
        passes.append(len(counted))
        system.evaluate(np.ones(1), precision)
    assert passes[1] <= passes[0] / 2


def logistic_problem():
    """Of 60 parameters, whose curvature follows the mode."""
    rng = np.random.default_rng(2)
    design = rng.standard_normal((600, 60)) * 10.0 ** rng.uniform(-1, 1, 60)
    outputs = design @ (rng.standard_normal(60) / np.linalg.norm(design, axis=0)) * 10
    targets = (outputs + rng.logistic(size=600) > 0).astype(int)
    operator = lx.MatrixLinearOperator(jnp.asarray(design, jnp.float32))
    return lm.Observations(operator, targets, lm.Bernoulli())


@pytest.mark.slow
def test_the_last_solve_and_what_is_near_look_no_more(monkeypatch):
    """Behind an evaluation of a curvature that follows the mode."""
    data, prior, alpha = logistic_problem(), lm.GaussianPrior(groups=np.arange(60) % 2), ALPHA[:2]
    system = prepared(data, prior, BlockCG("primal"), num_samples=K, key=KEY)
    start, sketches, sketch = system.evaluate(alpha, BETA).start, [], block_system.carried
    monkeypatch.setattr(
        block_system, "carried", lambda *a, **b: sketches.append(1) or sketch(*a, **b)
    )
    alone, after = (system.solve(alpha, BETA, known).report.passes for known in (None, start))
    assert after < alone
    terms = system.nearby(start)(alpha, BETA)
    assert (terms.group_dimension > 0).all()
    assert not sketches


@pytest.mark.slow
def test_the_next_search_is_shorter(tmp_path):
    """With a curvature that follows the mode the last one serves, also from a saved state."""
    data = logistic_problem()
    prior, counted, states = lm.GaussianPrior(groups=np.arange(60) % 2), [], []
    method = BlockCG("primal", callback=lambda progress: counted.append(len(progress.residual)))
    arguments = {"method": method, "num_samples": K, "key": KEY, "throw": False}
    lm.maximise_evidence(data, prior, callback=states.append, max_steps=3, **arguments)
    ends, passes = [], []
    for start in (states[0].start._replace(carried=None), states[0].start):
        counted.clear()
        state = dataclasses.replace(states[0], start=start)
        lm.save(state, tmp_path / "state")
        state = lm.load(tmp_path / "state", lm.EvidenceState)
        fit = lm.maximise_evidence(data, prior, state=state, max_steps=2, **arguments)
        ends.append(np.asarray(fit.prior.alpha))
        passes.append(counted.count(1))
    assert (ends[1] == np.asarray(states[1].alpha, ends[1].dtype)).all()
    np.testing.assert_allclose(*ends, rtol=0.01)
    assert passes[1] <= passes[0] / 2
