"""Settings of the whole suite: shapes are checked, and every test's cases are reproducible."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

# Before anything imports the packages: from here on every jaxtyping annotation in them is enforced.
jaxtyping.install_import_hook(["linmodels", "linmodels_nn"], "beartype.beartype")

# What one worker or run has compiled serves the others, and processes that tests start: most
# of a test's time is compilation. jax reads these when it is imported.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".jax_cache")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

for name, examples in {"fast": 15, "slow": 200, "many": 10_000}.items():
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        print_blob=True,
        # An example that meets a new shape compiles, which takes seconds and says nothing.
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(os.environ.get("LINMODELS_HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """The folder of data sets too large for the repository, named by LINMODELS_DATA."""
    name = os.environ.get("LINMODELS_DATA")
    if not name:
        pytest.skip("LINMODELS_DATA is not set: it names the folder of large data sets")
    if not Path(name).is_dir():
        pytest.skip(f"LINMODELS_DATA={name!r} is not a folder")
    return Path(name)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations are not enforced, so that misuse reaches the library's own checks."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", value=True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
