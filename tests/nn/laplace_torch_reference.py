"""Writes laplace_torch_reference.npz: what laplace-torch says of small networks, in float64.

pip install --group benchmarks-networks
python tests/nn/laplace_torch_reference.py
"""

import importlib.metadata
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_suffix(".npz")
ALPHA, SIGMA = 2.0, 0.5
SIZES = {"one output": (2, 6, 1), "two outputs": (2, 6, 2), "three classes": (2, 6, 3)}
SAMPLES = 4_000


def problem(sizes: tuple[int, int, int], seed: int) -> dict[str, np.ndarray]:
    """Weights of a one-layer tanh network, 30 examples and 7 more inputs."""
    rng = np.random.default_rng(seed)
    d, h, m = sizes
    found = {"x": rng.standard_normal((30, d)), "new": 2 * rng.standard_normal((7, d))}
    for name, shape in (("w1", (h, d)), ("b1", (h,)), ("w2", (m, h)), ("b2", (m,))):
        found[name] = rng.standard_normal(shape)
    outputs = np.tanh(found["x"] @ found["w1"].T + found["b1"]) @ found["w2"].T + found["b2"]
    if m == 3:
        return found | {"y": np.argmax(outputs + rng.gumbel(size=outputs.shape), axis=1)}
    return found | {"y": outputs + SIGMA * rng.standard_normal(outputs.shape)}


def theirs(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of laplace-torch's generalised Gauss-Newton posterior of all weights."""
    import laplace
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(*arrays["w1"].T.shape), torch.nn.Linear(*arrays["w2"].T.shape)
    network = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1]).double()
    with torch.no_grad():
        for layer, number in ((layers[0], 1), (layers[1], 2)):
            layer.weight.copy_(torch.from_numpy(arrays[f"w{number}"]))
            layer.bias.copy_(torch.from_numpy(arrays[f"b{number}"]))
    likelihood = "regression" if arrays["y"].ndim == 2 else "classification"
    held = laplace.Laplace(network, likelihood, "all", "full", prior_precision=ALPHA)
    if likelihood == "regression":
        held.sigma_noise = SIGMA
    pairs = torch.utils.data.TensorDataset(*(torch.from_numpy(arrays[name]) for name in "xy"))
    held.fit(torch.utils.data.DataLoader(pairs, batch_size=10))
    new = torch.from_numpy(arrays["new"])
    mean, covariance = held._glm_predictive_distribution(new)
    found = {"mean": mean, "covariance": covariance}
    if likelihood == "regression":
        drawn = held.functional_samples(new, pred_type="glm", n_samples=SAMPLES)
        found["of samples"] = torch.cov(drawn.flatten(1).T)
        found["joint"] = held._glm_predictive_distribution(new, joint=True)[1]
    return {name: value.detach().numpy() for name, value in found.items()}


def main() -> None:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("laplace-torch", "torch")]
    kept = {"versions": np.array(versions)}
    for seed, (name, sizes) in enumerate(SIZES.items()):
        arrays = problem(sizes, seed)
        found = arrays | theirs(arrays)
        kept |= {f"{name}/{key}": value for key, value in found.items()}
    np.savez_compressed(PATH, **kept)


if __name__ == "__main__":
    main()
