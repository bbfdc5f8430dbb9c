import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def single_precision():
    """Unless a test asks for more, whatever the environment says."""
    with jax.enable_x64(False):
        yield


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """A dtype, and the context in which it exists."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
