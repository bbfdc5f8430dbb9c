"""What a linearised network refuses, leaves alone, and hands to linmodels."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import linmodels as lm
from linmodels._batches import batches
from linmodels._products import factor_of, normal, unit_design
from linmodels_nn import Linearised, laplace, linearise
from nn.networks import CASES, N, made, mlp, trained_convolutional
from nn.networks import normal as drawn

KEY = jax.random.key(1)
pytestmark = pytest.mark.usefixtures("unchecked")


def test_layers_in_training_mode_are_refused():
    network, state = trained_convolutional()
    with pytest.raises(ValueError, match=r"^\.norm is a BatchNorm in training mode: .*inference"):
        linearise(network, state=state)
    half = eqx.tree_at(lambda net: net.norm, network, eqx.nn.inference_mode(network.norm))
    with pytest.raises(ValueError, match=r"^\.drop is a Dropout in training mode"):
        linearise(half, state=state)
    with pytest.raises(ValueError, match=r"^\[0\]\.norm is a BatchNorm in training mode"):
        linearise(lambda w, x: w[0](x, w[1])[0], (network, state))
    with pytest.raises(ValueError, match=r"^network is a Dropout in training mode"):
        linearise(eqx.nn.Dropout(0.5))
    arrays = eqx.filter(network, eqx.is_array)  # without the flag, which a function may hold
    assert isinstance(linearise(lambda w, x: x * w.last.bias.sum(), arrays), Linearised)
    attention = made(eqx.nn.MultiheadAttention, 1, 2)  # it holds a Dropout(0)
    assert isinstance(linearise(lambda w, x: w(x, x, x), attention), Linearised)


def test_a_state_must_belong_to_the_network():
    network, state = trained_convolutional()
    network = eqx.nn.inference_mode(network)
    with pytest.raises(ValueError, match="layers with a state, such as BatchNorm: give it by sta"):
        linearise(network)
    with pytest.raises(ValueError, match="no layer with a state"):
        linearise(mlp(), state=state)
    with pytest.raises(ValueError, match="give a function's with its parameters"):
        linearise(lambda w, x: w * x, jnp.ones(3), state=state)


def test_the_network_and_its_state_are_left_as_they_were():
    network, state = trained_convolutional()
    network, x = eqx.nn.inference_mode(network), drawn(N, 1, 6, 6)
    before = jax.tree.map(lambda leaf: leaf, (network, state))
    linearised = linearise(network, state=state)
    linearised.observations(x, np.zeros((N, 3), "f"), lm.Gaussian(1.0))
    assert eqx.tree_equal((network, state), before)
    own, _ = network(x[0], state)  # a state that had been used up would raise
    np.testing.assert_allclose(linearised.outputs(x)[0], own, rtol=1e-5)


def test_statistics_that_a_state_began_with_are_no_parameters():
    norm = eqx.nn.inference_mode(eqx.nn.BatchNorm(2, axis_name="batch", mode="ema"))
    linearised = linearise(norm, state=eqx.nn.State(norm))
    leaves = jax.tree.leaves(linearised.parameters)
    assert [leaf.shape for leaf in leaves] == [(2,), (2,)]  # scale and shift


def test_bad_choices_are_named():
    network = mlp()
    nothing = jax.tree.map(lambda _: False, network)
    with pytest.raises(ValueError, match="filter_spec chooses none of the network's arrays"):
        linearise(network, filter_spec=nothing)
    everything = jax.tree.map(lambda _: True, network)
    with pytest.raises(ValueError, match=r"filter_spec chooses \.activation, <.*tanh.*real floats"):
        linearise(network, filter_spec=everything)
    function = lambda w, x: w["a"] * x
    with pytest.raises(ValueError, match=r"chooses \['b'\], an array of int32"):
        linearise(function, {"a": jnp.ones(3), "b": jnp.arange(3)}, filter_spec=True)
    with pytest.raises(ValueError, match=r"chooses \['a'\], an array of complex64"):
        linearise(function, {"a": jnp.ones(3, complex)})
    with pytest.raises(ValueError, match="network must be callable, got dict"):
        linearise({"a": jnp.ones(3)})


def test_bad_inputs_and_outputs_are_named():
    linearised = CASES["dicts in and out"]().linearised
    unequal = {"numbers": drawn(N, 2), "token": np.zeros(4, int)}
    with pytest.raises(ValueError, match=r"one example at a time .* \[\(5, 2\), \(4,\)\]"):
        linearised.jacobian(unequal)
    with pytest.raises(ValueError, match=r"at least one example .* \[\(0, 3\)\]"):
        linearise(mlp()).jacobian(np.zeros((0, 3), "f"))
    mixed = linearise(lambda w, x: (w * x).astype(jnp.bfloat16), jnp.ones(3))
    with pytest.raises(ValueError, match="single dtype, got bfloat16 and float32; cast"):
        mixed.jacobian(drawn(N, 3))
    with pytest.raises(ValueError, match="single dtype, got float32 and int32"):
        linearise(lambda w, x: jnp.argmax(w * x), jnp.ones(3)).jacobian(drawn(N, 3))


def test_outputs_that_are_not_finite_are_named_with_their_batch():
    linearised, x = linearise(mlp()), drawn(10, 3)
    x[5, 0] = np.nan
    rows = lm.RowSlices(x, drawn(10, 2), batch_size=4)
    data = lm.Batched(rows, linearised.observe(lm.Gaussian(1.0)))
    with pytest.raises(ValueError, match=r"batch 1: offset must be finite; entry \(1, 0\) is nan"):
        lm.infer(data, lm.GaussianPrior(1.0), method=lm.Exact(), num_samples=0)


def test_the_parts_of_a_batch_become_the_input():
    linearised, inputs, _ = CASES["dicts in and out"]()
    targets = {"total": drawn(N), "each": drawn(N, 3)}
    data = linearised.observations(inputs, targets, lm.Gaussian(2.0))
    observe = linearised.observe(lm.Gaussian(2.0), inputs={"token": 0, "numbers": 1})
    seen = observe(inputs["token"], inputs["numbers"], targets)
    assert eqx.tree_equal(data, seen)
    with pytest.raises(
        ValueError, match=r"A batch has 3 arrays; .* those at \[0\], .* at \[-1\]\. Say where"
    ):
        linearised.observe()(inputs["token"], inputs["numbers"], targets)


WRONG_INPUTS = {
    "features": (False, drawn(5, 4), r"inputs of shapes \(5, 4\), taken one example at a time: "),
    "no axis of examples": (False, drawn(3), r"inputs of shapes \(3,\), taken one example"),
    "parts": (False, (drawn(5, 3), drawn(5, 2)), r"inputs of shapes \(\(5, 3\), \(5, 2\)\), taken"),
    "together": (True, drawn(5, 4), r"inputs of shapes \(5, 4\), taken all together: "),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_inputs_that_the_network_does_not_take(case):
    batched, wrong, message = WRONG_INPUTS[case]
    linearised = linearise(lambda w, x: x @ w, jnp.ones((3, 2)), batched=batched)
    prior = lm.Posterior(jnp.zeros((3, 2)), jnp.zeros((1, 3, 2)), None, lm.Gaussian(1.0))
    calls = (
        lambda: linearised.predict(prior, wrong),
        lambda: linearised.outputs(wrong),
        lambda: linearised.observations(wrong, drawn(5, 2)),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"^The network fails on {message}") as caught:
            call()
        assert caught.value.__cause__ is not None


def test_errors_of_every_library_of_networks_are_caught():
    """Flax's, for one, derive from Exception alone."""

    class ShapeError(Exception):
        pass

    def fails(w, x):
        raise ShapeError("no such shape\nmore")

    with pytest.raises(ValueError, match=r"taken one example at a time: no such shape$"):
        linearise(fails, jnp.ones(3)).outputs(drawn(5, 3))


def test_a_tuple_of_two_batches_is_no_pair():
    pair = (drawn(5, 3), drawn(5, 2))
    for data in ((pair, pair), (list(pair), list(pair))):
        with pytest.raises(ValueError, match=r"Give batches as a list: \[\(inputs, targets\), "):
            laplace(mlp(), data, key=KEY)


def test_parts_of_inputs_and_of_targets_are_a_pair():
    linearised = linearise(lambda w, x: (x[0] @ w, x[1] @ w), jnp.ones(3))
    arguments = {"method": lm.Exact(), "num_samples": 1, "key": KEY}
    inputs, targets = (drawn(5, 3), drawn(5, 3)), (drawn(5), drawn(5))
    assert laplace(linearised, (inputs, targets), **arguments).fit.num_observations == 5


def constants(data):
    """Bytes of the constants in a product of the data with two vectors, as it is compiled."""
    batch = next(iter(batches(data)))
    structure = batch.observations().design.in_structure()
    design = unit_design(factor_of(lm.GaussianPrior(1.0), structure), np.ones(1), jnp.float32)
    block = jnp.ones((2, design.factor.size))
    text = eqx.filter_jit(normal).lower(batch, design, block).as_text()
    return [len(digits) // 2 for digits in re.findall('dense<"0x([0-9A-F]+)"', text)]


def test_a_network_is_an_argument_of_what_is_compiled():
    linearised = linearise(made(eqx.nn.MLP, 100, 2, 8, 1, activation=jnp.tanh))
    rows = lm.RowSlices(drawn(6, 100), drawn(6, 2), batch_size=3)
    noise, weights = lm.Gaussian(1.0), 4 * 800
    assert max(constants(lm.Batched(rows, linearised.observe(noise))), default=0) < weights
    closed = lm.Batched(rows, lambda x, y: linearised.observations(x, y, noise))
    assert max(constants(closed)) == weights


def test_a_pass_over_the_data_compiles_once_a_shape():
    calls = []

    class Counted(eqx.Module):
        network: eqx.nn.MLP

        def __call__(self, x):
            calls.append(None)
            return self.network(x)

    linearised = linearise(Counted(mlp()))
    rows = lm.RowSlices(drawn(10, 3), drawn(10, 2), batch_size=4)
    data = lm.Batched(rows, linearised.observe(lm.Gaussian(1.0)))
    counts = []
    for seed in range(3):
        arguments = {"num_samples": 2, "key": jax.random.key(seed)}
        lm.infer(data, lm.GaussianPrior(1.0), method=lm.Exact(), **arguments)
        counts.append(len(calls))
    # Every fit asks for the shapes of the first batch; only the first compiles.
    assert counts[2] - counts[1] == counts[1] - counts[0] < counts[0]


def test_predictions_centre_on_the_network():
    linearised, inputs, _ = CASES["(2, 2)"]()
    deviations = jax.tree.map(lambda w: jnp.asarray(drawn(3, *w.shape)), linearised.parameters)
    other = jax.tree.map(jnp.zeros_like, linearised.parameters)
    posterior = lm.Posterior(other, deviations, None, lm.Gaussian(4.0))
    centred = linearised.predict(posterior, inputs)
    linear = posterior.predict(linearised.jacobian(inputs), linearised.offset(inputs))
    np.testing.assert_array_equal(centred.mean, linearised.outputs(inputs))
    np.testing.assert_array_equal(centred.deviations, linear.deviations)
    np.testing.assert_allclose(linear.mean, linearised.offset(inputs), rtol=1e-6)
    classes = linearised.predict(posterior, inputs, likelihood=lm.Categorical())
    np.testing.assert_allclose(classes.probabilities().sum(-1), 1, rtol=1e-6)
    with pytest.raises(ValueError, match="The design takes"):
        CASES["MLP"]().linearised.predict(posterior, inputs)


def test_operators_made_inside_jit():
    linearised, inputs, _ = CASES["MLP"]()
    y, prior = drawn(N, 2), lm.GaussianPrior(2.0)

    @jax.jit
    def mean(w, x, y):
        moved = eqx.tree_at(lambda net: net.parameters, linearised, w)
        data = moved.observations(x, y, lm.Gaussian(4.0))
        return lm.infer(data, prior, method=lm.Exact(), num_samples=0).posterior.mean

    data = linearised.observations(inputs, y, lm.Gaussian(4.0))
    outside = lm.infer(data, prior, method=lm.Exact(), num_samples=0).posterior.mean
    inside = mean(linearised.parameters, inputs, y)
    np.testing.assert_allclose(ravel_pytree(inside)[0], ravel_pytree(outside)[0], atol=1e-4)
