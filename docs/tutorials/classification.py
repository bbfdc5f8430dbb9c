# # Classification: how sure is a network?
#
# A network is trained to tell three classes apart by two numbers, gets error bars, and is asked
# about points that are like none it has seen. This page is a program:
# `python docs/tutorials/classification.py`.

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import linmodels as lm
import linmodels_nn as nn

# ## Data
#
# Three arms of a spiral that overlap, 60 points each. A second draw is held out.


def spiral(random):
    labels = np.repeat(np.arange(3), 60)
    radius = random.uniform(0.2, 1, 180)
    angle = 2 * np.pi * labels / 3 + 2 * radius + 0.35 * random.standard_normal(180)
    points = radius * np.stack([np.cos(angle), np.sin(angle)])
    return points.T.astype("float32"), labels


x, labels = spiral(np.random.default_rng(0))
x_held_out, labels_held_out = spiral(np.random.default_rng(1))

# ## A network
#
# Trained as always: cross-entropy and weight decay. The decay is that of a prior of unit precision
# on the weights, over the sum of 180 losses.

STEPS = 1_000
optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, STEPS))


@eqx.filter_jit
def step(network, state):
    def loss(network):
        weights = eqx.filter(network, eqx.is_inexact_array)
        logits = jax.vmap(network)(x)
        error = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return error + 0.5 / len(x) * optax.tree.norm(weights, squared=True)

    updates, state = optimiser.update(eqx.filter_grad(loss)(network), state)
    return eqx.apply_updates(network, updates), state


network = eqx.nn.MLP(2, 3, 12, 2, activation=jnp.tanh, key=jax.random.key(0))
state = optimiser.init(eqx.filter(network, eqx.is_inexact_array))
for _ in range(STEPS):
    network, state = step(network, state)

# ## Error bars
#
# One call. The strength of the prior on the weights is learned by maximising the evidence; nothing
# is set aside for validation.

fitted = nn.laplace(network, (x, labels), lm.Categorical(), key=jax.random.key(1))
print(f"{float(fitted.fit.effective_dimension):.0f} of 231 parameters are determined by the data")
print(f"log evidence {float(fitted.log_evidence):.0f} nats")

# ## Predictions
#
# `probabilities()` averages the softmax over samples of the posterior. Where there are data, that
# changes little. Far away the network alone is as sure as anywhere, for nothing in its training
# told it otherwise; other weights that fit the data as well say something else there.

held_out = fitted.predict(x_held_out)
far = fitted.predict(np.array([[0, 3], [0, 3.1], [3, 0], [-3, -3]], "float32"))
for name, prediction in {"held-out points": held_out, "far away": far}.items():
    alone = jax.nn.softmax(prediction.mean).max(axis=1).mean()
    averaged = prediction.probabilities().max(axis=1).mean()
    print(f"{name}: the network alone is {alone:.1%} sure, with error bars {averaged:.1%}")

assert far.probabilities().max(axis=1).mean() < jax.nn.softmax(far.mean).max(axis=1).mean() - 0.05
assert far.std().mean() > held_out.std().mean()

# What averaging costs and gains is measured on data held out, and not always a gain: on points like
# those of the training a well-trained network alone may be the better calibrated.

alone = jax.nn.log_softmax(held_out.mean)
print(
    f"log-likelihood alone {alone[np.arange(len(alone)), labels_held_out].mean():.3f} nats a point"
)
print(f"with error bars {held_out.log_prob(labels_held_out).mean():.3f} nats a point")

for name, probabilities in {"alone": jnp.exp(alone), "with": held_out.probabilities()}.items():
    reliability = lm.metrics.reliability(probabilities, jnp.asarray(labels_held_out))
    print(f"calibration error {name}: {reliability.expected_error:.3f}")

# ## Joint samples
#
# Every sample is one function, seen at all points at once. Whether two points have the same class,
# such as the first two of those far away, can only be asked of samples: the product of their
# probabilities would take them for independent.

classes = jax.nn.softmax(far.samples())
together = (classes[:, 0] * classes[:, 1]).sum(axis=1).mean()
apart = (far.probabilities()[0] * far.probabilities()[1]).sum()
print(f"the same class: {together:.0%}, were they independent {apart:.0%}")
assert together > apart

# ## Keep it
#
# One file, without the network, which is needed again to read it.

fitted.save("spiral.linmodels")
again = nn.Laplace.load("spiral.linmodels", network)
assert (again.predict(x_held_out).std() == held_out.std()).all()

# The same with real images, and how it fares when they are turned: `make demo-nn`. More networks
# and data in batches: [networks](../networks.md).
