import jax
import jaxtyping
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


@pytest.fixture
def unchecked():
    """Annotations are not enforced, so that misuse reaches the library's own checks."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", value=True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
