"""The paper's ablation on MNIST: losses, fidelity, evidence and calibration.

    LINMODELS_DATA=folder python -m benchmarks.paper.mnist [--size small] [--studies fidelity ...]

`small` takes minutes on two cores; `medium`, 20 minutes for the fidelity study, is the smallest of
the paper's networks on some of the digits, and `large`, about an hour and 20 GB, the next one;
`full` is for one GPU with 80 GB, a study a command so that each ends within 8 minutes; neither of
these two has been run to its end yet. `tiny` only runs every line.
Weights are kept in `LINMODELS_CACHE`, or in benchmarks/.cache. With the dependency group
`benchmarks-networks` installed tables have rows of laplace-torch.
"""

import argparse
import importlib.metadata
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from jaxtyping import Array

from benchmarks import _report
from benchmarks.paper._digits import digits
from benchmarks.paper.mnist import calibration, dense, evidence, fidelity, losses, torch_laplace
from benchmarks.paper.mnist.claims import Claim, listed
from benchmarks.paper.mnist.lenet import LENET, LENET_BIG, LENET_SMALL, LENET_TINY, Architecture
from benchmarks.paper.mnist.problem import Problem, made
from benchmarks.paper.mnist.training import Recipe, trained

STUDIES = "fidelity", "evidence", "losses", "calibration"
"""In the order in which they run, as far as the time goes."""
KEY = jax.random.key(0)
THREADS = "OPENBLAS_NUM_THREADS"


class Setting(NamedTuple):
    """How large everything is; nothing is tuned on test digits."""

    networks: tuple[Architecture, ...]
    main: int
    """which of them has the studies of one network"""
    train: int
    test: int
    recipe: Recipe
    batch_size: int
    """images that pass through the network together"""
    steps: tuple[int, ...]
    """images in a minibatch of stochastic gradients"""
    written_out: bool
    """whether the Jacobian is, so that products are of matrices"""
    minutes: float = float("inf")
    """after which no other part is begun"""


MEDIUM = Setting(
    (LENET_SMALL,),
    main=0,
    train=4_000,
    test=1_000,
    recipe=Recipe(40, 100, 0.1),
    batch_size=4_000,
    steps=(200,),
    written_out=True,
)

SETTINGS = {
    "tiny": Setting(
        (Architecture("LeNetDwarf", (2, 3, 3)),),
        main=0,
        train=60,
        test=20,
        recipe=Recipe(20, 20, 0.1),
        batch_size=30,
        steps=(20,),
        written_out=False,
    ),
    "small": Setting(
        (Architecture("LeNetDwarf", (4, 8, 8)), LENET_TINY),
        main=0,
        train=2_000,
        test=1_000,
        recipe=Recipe(40, 100, 0.2),
        batch_size=2_000,
        steps=(200, 50),
        written_out=True,
    ),
    "medium": MEDIUM,
    "large": MEDIUM._replace(networks=(LENET,)),
    "full": Setting(
        (LENET_SMALL, LENET, LENET_BIG),
        main=1,
        train=60_000,
        test=10_000,
        recipe=Recipe(15, 250, 0.05),
        batch_size=1_000,
        steps=(1_000,),
        written_out=False,
        minutes=6,
    ),
}


class Run:
    """What the studies share: data, networks, curvatures and strengths, each made once."""

    def __init__(self, size: str):
        self.size, self.setting = size, SETTINGS[size]
        self.begin, self.limit = time.perf_counter(), 60 * self.setting.minutes
        self.train = digits("train", self.setting.train)
        self.test = digits("t10k", self.setting.test)
        self._held: tuple[int, Problem, Array] | None = None
        self._alphas: dict[tuple[int, str], float] = {}

    @property
    def late(self) -> bool:
        """Whether no other part is to be begun."""
        return time.perf_counter() - self.begin > self.limit

    def tell(self, what: str) -> None:
        """Prints how far it is."""
        print(f"[{time.perf_counter() - self.begin:6.0f} s] {what}", flush=True)

    def problem(self, place: int) -> tuple[Problem, Array]:
        """A network as a linear model, and its curvature; only the last one is held."""
        if self._held is None or self._held[0] != place:
            self._held = None
            setting, architecture = self.setting, self.setting.networks[place]
            network = trained(architecture, self.train, setting.recipe)
            self.tell(f"{architecture.name} trained")
            written_out = setting.written_out
            problem = made(network, self.train, setting.batch_size, written_out=written_out)
            self._held = place, problem, jax.block_until_ready(dense.curvature(problem))
            self.tell(f"{architecture.name}: curvature of {problem.size:,} parameters")
        return self._held[1:]

    def alpha(self, place: int, scale: str) -> float:
        """Of the full covariance's evidence."""
        if (place, scale) not in self._alphas:
            problem, gram = self.problem(place)
            found = evidence.with_full_covariance(problem, gram, scale, layers=False)
            self.keep_alpha(place, found)
            self.tell(f"full covariance, {scale}: α {found.alpha[0]:.3g}")
        return self._alphas[place, scale]

    def keep_alpha(self, place: int, found: evidence.Learned) -> None:
        """Keeps what a study has learned, for the others."""
        self._alphas[place, found.scale] = float(found.alpha[0])

    def save(
        self,
        study: str,
        header: list[str],
        rows: list[list[str]],
        notes: str,
        claims: Sequence[Claim] = (),
    ) -> None:
        """Writes a table, with what it was measured on and what became of the claims."""
        setting = self.setting
        shared = (
            f"{setting.train:,} digits of MNIST for training and curvature, {setting.test:,} for "
            f"tests; curvature held at the network's own outputs. {self._machine()}"
        )
        title = f"MNIST, {study} ({self.size})"
        parts = notes.strip(), listed(claims), shared
        _report.save(self.name(study), title, header, rows, "\n\n".join(filter(None, parts)))

    def name(self, study: str) -> str:
        """Of a result's files."""
        return f"paper/mnist_{study}_{self.size}"

    def _machine(self) -> str:
        seconds = time.perf_counter() - self.begin
        spent = f"{seconds:.0f} s since the start, on {jax.devices()[0].device_kind}"
        if THREADS in os.environ:  # small factorisations on a busy machine are slow without
            spent += f", {THREADS}={os.environ[THREADS]}"
        if not torch_laplace.available():
            return f"{torch_laplace.MISSING} {spent}."
        versions = (f"{n} {importlib.metadata.version(n)}" for n in ("torch", "laplace-torch"))
        return f"{', '.join(versions)}; {spent}."


def run_fidelity(run: Run) -> None:
    rows = []
    for place, architecture in enumerate(run.setting.networks):
        if run.late:
            break
        problem, gram = run.problem(place)
        alpha = run.alpha(place, "isotropic")
        name = f"{architecture.name}, {problem.size:,}"
        rows += fidelity.compared(name, problem, gram, alpha, run.test, key=KEY)
        run.tell(f"{architecture.name} compared")
    table = [fidelity.described(row) for row in rows]
    run.save("fidelity", fidelity.HEADER, table, fidelity.NOTES, fidelity.claims(rows))
    fidelity.drawn(run.name("fidelity"), rows)


def run_evidence(run: Run) -> None:
    problem, gram = run.problem(run.setting.main)
    found = []
    for one in evidence.study(problem, gram, key=KEY):
        found.append(one)
        if one.method == "full covariance" and len(one.alpha) == 1:
            run.keep_alpha(run.setting.main, one)
        run.tell(" | ".join(evidence.described(one)))
        # Saved as it comes: the last ones take longest.
        rows = [evidence.described(one) for one in found]
        run.save("evidence", evidence.HEADER, rows, evidence.NOTES, evidence.claims(found))
        evidence.drawn(run.name("evidence"), found)


def run_losses(run: Run) -> None:
    problem, gram = run.problem(run.setting.main)
    alpha, on_host = run.alpha(run.setting.main, "g-prior"), run.setting.written_out
    about = {"on_host": on_host, "key": KEY}
    arguments = problem, gram, alpha, run.test, run.setting.steps
    curves, exact = losses.study(*arguments, **about)
    rows = [losses.described(name, curve, exact) for name, curve in curves.items()]
    rows.append(losses.described("exact samples", [], exact))
    run.save("losses", losses.HEADER, rows, losses.notes(alpha, on_host=on_host))
    losses.drawn(run.name("losses"), curves, exact)


def run_calibration(run: Run) -> None:
    setting = run.setting
    problem, gram = run.problem(setting.main)
    architecture = setting.networks[setting.main]
    networks = calibration.trained_networks(architecture, run.train, setting.recipe)
    run.tell("ensemble and dropout trained")
    alphas = {scale: run.alpha(setting.main, scale) for scale in evidence.SCALES}
    sets = calibration.shifted(run.test)
    rows, ours = calibration.study(problem, gram, alphas, networks, sets, key=KEY)
    table = [calibration.described(row) for row in rows]
    about = calibration.header(sets), table, calibration.NOTES
    run.save("calibration", *about, calibration.claims(ours))
    calibration.drawn(run.name("calibration"), rows)


RUNNERS: dict[str, Callable[[Run], None]] = {
    "fidelity": run_fidelity,
    "evidence": run_evidence,
    "losses": run_losses,
    "calibration": run_calibration,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper.mnist")
    parser.add_argument("--size", choices=SETTINGS, default="small")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=STUDIES)
    parser.add_argument("--results", type=Path, help="folder of tables, not the repository's")
    options = parser.parse_args()
    if options.results is not None:
        _report.RESULTS = options.results
    jax.config.update("jax_default_matmul_precision", "highest")  # a GPU would round to 10 bits
    run = Run(options.size)
    for study in (study for study in STUDIES if study in options.studies):
        if run.late:
            run.tell(f"{study} NOT run, as the time is over: --studies {study} runs it alone")
            continue
        RUNNERS[study](run)
        run.tell(f"{study} done")


if __name__ == "__main__":
    main()
