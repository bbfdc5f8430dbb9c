"""A linear model in products: the posterior and the evidence by a solver of blocks of vectors."""

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._batches import example_batch, num_outputs
from linmodels._priors import GaussianPrior
from linmodels._products import WhitenedDesign
from linmodels._results import RESULTS
from linmodels.effective_dimension import Estimate
from linmodels.krylov import (
    AbstractPreconditioner,
    AbstractRoot,
    IdentityRoot,
    Known,
)
from linmodels.methods._equations import (
    Equations,
    dual_equations,
    primal_equations,
    pull,
)
from linmodels.methods._evidence_path import EvidencePath, require_one_each
from linmodels.methods._krylov_path import Explored, krylov_path
from linmodels.methods._matrix_free import MatrixFree
from linmodels.methods._method import (
    AbstractSystem,
    Evaluation,
    EvidenceTerms,
    Hyperparameters,
    Scales,
    Solution,
    SolverReport,
)
from linmodels.methods._parameters import scales_of
from linmodels.methods._samples import (
    evidence_terms,
    log_determinant_of,
    truncated_log_determinant,
)
from linmodels.methods._sketch import CARRIED_ENTRIES, Carried, carried, sketchable, strength
from linmodels.methods._solver import AbstractSolver
from linmodels.methods.stopping import evaluation_of, report_of

MAX_PROBES = 11
"""Random vectors of the evidence path, a block of 12 with the targets: they give γ to √(2/(11 γ))
or better."""
PRECISION = 0.035
"""Relative error of α and of the noise precision for which another path follows where that takes at
least twice as many, and there are more: for a small γ, or where noise and signal look alike."""
MORE_PROBES = 64
"""Random vectors that such a path has at most."""
REFINEMENTS = 3
"""Solves to a smaller tolerance, where groups of parameters turn out to have a small γ_l."""
NOTHING = 0.01
"""γ_l that is nothing to wait for; a bound on it is tr M_ll/α_l."""
PROBE_ENTRIES = 2**28
"""Largest block of them, and basis of another path, fewer vectors where there are more outputs:
1 GiB in float32."""


class BlockSystem(AbstractSystem):
    """A linear model in products, to be solved at given hyperparameters."""

    prior: GaussianPrior
    reason: str
    model: MatrixFree
    side: str
    learn_noise: bool
    tolerance: float
    max_passes: int
    solver: AbstractSolver
    preconditioner: AbstractPreconditioner | None
    key: Array
    """of the preconditioner's sketch"""
    given: Carried | None = None
    """of a curvature like this one"""

    def scales(self) -> Scales:
        """Starts and caps."""
        model, sums = self.model, self.model.sums
        epsilon = float(jnp.finfo(sums.cross.dtype).eps)
        about = self._information, model.group_sums(np.ones(model.factor.size))
        return scales_of(*about, sums.rank, sums.square, sums.raw_square, epsilon)

    @cached_property
    def _information(self) -> Float[np.ndarray, " L"]:
        """At unit noise."""
        return self._information_at(np.ones(len(self.model.sums.rank)))

    def _information_at(self, beta: Float[np.ndarray, " C"]) -> Float[np.ndarray, " L"]:
        """tr (W₀ᵀBW₀)_ll from the noise, E‖W₀ᵀ√B u‖²."""
        model = self.model
        cross = model.design(np.ones(model.groups[1]), beta)
        pulled = pull(cross, model.crosses(beta)[:-1])
        return model.group_sums(np.asarray(pulled) ** 2).mean(0)

    def evaluate(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: "Nearby | None" = None
    ) -> Evaluation:
        """The evidence and its terms: from a Krylov path for one of each, else from a solve."""
        if self.has_path:
            settled = RESULTS.successful if self.path.settled else RESULTS.max_passes_reached
            return Evaluation(self.path.evaluate(alpha, beta), result=settled)
        kept = self._carried if self._carries else None  # before, as this solve needs it too
        found = self._find(alpha, beta, start)
        change = found.equations.change(found.value)
        near = Nearby(*found.at, change, found.terms, found.determinant, found.hint)
        about = found.terms, found.report, found.result, self.model.sums.rank
        return evaluation_of(*about, near)._replace(carried=kept)

    @property
    def has_path(self) -> bool:
        """Whether evaluations come from a path: of one α and one noise precision."""
        return self.solver.krylov and self.model.groups[1] == len(self.model.sums.rank) == 1

    @property
    def path(self) -> EvidencePath:
        """The evidence at every α and noise precision, from one block Krylov space."""
        return self._explored.path

    @cached_property
    def _explored(self) -> Explored:
        """By as many probes as γ needs."""
        model = self.model
        require_one_each(model.groups[1], len(model.sums.rank))
        outputs = num_outputs(model.data, example_batch(model.data))
        fitting = min(model.num_samples, max(PROBE_ENTRIES // outputs, 2))
        found = self._explored_by(min(MAX_PROBES, fitting), self.max_passes)
        path = found.path
        kept = path.passes * min(outputs, model.factor.size)  # for every probe, of a basis
        at = path.maximum(self._known_noise)
        errors = path.strength_errors(*at, noise_known=not self.learn_noise)
        ratio = max(errors.alpha, errors.noise_precision) / PRECISION
        most = min(fitting, MORE_PROBES, PROBE_ENTRIES // kept)
        probes = int(min(MAX_PROBES * ratio**2, most))
        left = self.max_passes - path.passes
        if probes < 2 * MAX_PROBES or left < 1:
            return found
        finer = self._explored_by(probes, left)
        best = finer if finer.path.settled else found
        passes = path.passes + finer.path.passes
        return best._replace(path=replace(best.path, passes=passes))

    @property
    def _known_noise(self) -> float | None:
        return None if self.learn_noise else 1.0

    def _explored_by(self, num_probes: int, max_passes: int) -> Explored:
        model, one = self.model, np.ones(1)
        return krylov_path(
            model,
            model.design(one, one),
            model.rows(one, num_probes),
            noise_precision=self._known_noise,
            max_passes=max_passes,
        )

    def solve(self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: Any = None) -> Solution:
        """The posterior, and the evidence from the solver's recurrence."""
        found = self._find(alpha, beta, None if self.solver.krylov else start)
        terms = found.terms
        if "_explored" in vars(self):  # it is there already, and knows the evidence better
            best = self.path.evaluate(*found.at)
            terms = terms._replace(  # with the parts that it is made of
                log_evidence=best.log_evidence,
                log_evidence_error=best.log_evidence_error,
                group_norm=best.group_norm,
                residual=best.residual,
            )
        report = self.solver.described(found.equations, found.value, found.hint, found.report)
        posterior = self.model.posterior(found.units)
        return Solution(terms, posterior, found.result, report)

    def _find(self, alpha: Any, beta: Any, start: "Nearby | None") -> "_Found":
        """Solves to the tolerance, and for several groups on from there."""
        alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
        design = self.model.design(alpha, beta)
        root, looked = self.look(design)
        form = primal_equations if self.side == "primal" else dual_equations
        equations = form(self.model, Hyperparameters(alpha, beta), design, root, self.tolerance)
        if start is None or not start.is_close(alpha, beta, equations.rhs.shape):
            found = self._found(equations, looked)
        else:
            begin = equations.begin(start.change)
            found = self._found(equations, looked, begin, start.determinant, start.hint)
            found = found.moved(self._growth(start, found))
        return self._refined(found)

    def _refined(self, found: "_Found") -> "_Found":
        """Goes on until the error resolves every group, as far as passes and precision allow."""
        for _ in range(REFINEMENTS):
            wanted, spent = self._resolving(found), found.report.passes
            if found.result != RESULTS.successful or found.report.estimate <= wanted:
                break
            if spent >= self.max_passes:
                break
            about = spent, found.value, found.determinant, found.hint
            finer = self._found(found.equations.with_tolerance(wanted), *about)
            report = replace(finer.report, tolerance=found.report.tolerance)
            found = finer._replace(report=report, result=found.result)
            if finer.result != RESULTS.successful:
                break
        return found

    def _found(
        self,
        equations: Equations,
        spent: int,
        begin: Float[Array, "k1 n"] | None = None,
        determinant: Estimate | None = None,
        hint: Any = None,
    ) -> "_Found":
        """One solve, and the terms of the evidence at it.

        Only a solve without a known log determinant leaves a quadrature for it.
        """
        limit = max(self.max_passes - spent, 1)
        solved = self.solver.solve(equations, begin, limit, hint, quadrature=determinant is None)
        model, equations, (alpha, beta) = self.model, solved.equations, solved.equations.at
        x = equations.coordinates(solved.value)
        units = model.units(equations.design, x, model.crosses(beta))
        if determinant is None:
            epsilon = float(jnp.finfo(x.dtype).eps)
            estimate = truncated_log_determinant if solved.truncated else log_determinant_of
            determinant = estimate(solved.recurrence, equations.size, equations.root, epsilon)
        terms = evidence_terms(model, alpha, beta, x, units, determinant)
        error = solved.progress.error if self.side == "primal" else None
        passes, tolerance = spent + solved.progress.passes, float(equations.rule.tolerance)
        report = report_of(solved.progress.measure, tolerance, passes, error)
        about = units, terms, determinant, report, solved.result, solved.hint
        return _Found(equations, solved.value, *about)

    def _growth(self, start: "Nearby", found: "_Found") -> float:
        """Of log det(I + WᵀW), whose slopes are −γ_l in log α_l and γ_c, less flats, in log β_c."""
        middle = lambda one, two: (np.asarray(one) + np.asarray(two)) / 2
        old, new = start.terms, found.terms
        parameters = middle(old.group_dimension, new.group_dimension)
        outputs = middle(old.output_dimension, new.output_dimension)
        flat = [
            np.linalg.slogdet(self.model.flats.gram(beta))[1]
            for beta in (start.beta, found.at.beta)
        ]
        grown = outputs @ np.log(found.at.beta / start.beta)
        grown -= parameters @ np.log(found.at.alpha / start.alpha)
        return float(grown - (flat[1] - flat[0]))

    def _resolving(self, found: "_Found") -> float:
        """The tolerance at which an error as large as ε²γ is a small share of every group's γ_l."""
        dimension = found.terms.group_dimension
        seen = self._information * found.at.beta.max() / found.at.alpha > NOTHING
        if len(dimension) == 1 or not seen.any():
            return self.tolerance
        smallest = max(float(dimension[seen].min()), 1.0)
        return self.tolerance * min(smallest / max(float(dimension.sum()), 1.0), 1.0)

    @property
    def _carries(self) -> bool:
        """Whether solves are in coordinates that preconditioners can carry from α to α."""
        return self.solver.krylov and self.side == "primal"

    @cached_property
    def _carried(self) -> Carried | None:
        """What preconditions at all hyperparameters, where the method was given nothing."""
        if self.preconditioner is not None:
            return None
        if self.given is not None:
            return self.given
        unit = np.ones(len(self.model.sums.rank))
        beta = self.scales().noise_precision if self.learn_noise else unit
        return carried(self.model, self._information_at(beta), beta, key=self.key)

    def carrying(self, carried: Carried | None) -> "BlockSystem":
        """With that in the place of a sketch of its own, unless it has a preconditioner."""
        if carried is None or self.preconditioner is not None:
            return self
        return replace(self, given=carried)

    def for_similar(self, alpha: Float[Any, " L"], beta: Float[Any, " C"]) -> Known | None:
        """What is carried from one α to the other; on the side of the parameters."""
        if self._carried is None:
            return None
        return self._carried.at(strength(self.model.design(alpha, beta)))

    def look(self, design: WhitenedDesign) -> tuple[AbstractRoot, int]:
        """The preconditioner at these hyperparameters, and the passes that it took."""
        if self.preconditioner is None:
            return self._known_root(design), 0
        chosen = self.preconditioner.batches
        operator = sketchable(self.model, design, chosen, dual=self.side == "dual")
        return self.preconditioner.root(operator, key=self.key), self.preconditioner.passes(
            operator
        )

    def _known_root(self, design: WhitenedDesign) -> AbstractRoot:
        """What earlier passes have told, where they were on this side."""
        there = vars(self).get("_carried", self.given) if self._carries else None
        if there is not None:
            return there.at(strength(design)).known
        if not self.solver.krylov or "_explored" not in vars(self):
            return IdentityRoot()
        pairs, dual = self._explored.pairs, self.side == "dual"
        ratio = float(strength(design).max()) ** 2
        size = pairs.basis[0].shape[1]
        found = pairs.known(ratio, CARRIED_ENTRIES // size) if pairs.of_start == dual else None
        return IdentityRoot() if found is None else found.root()


class Nearby(NamedTuple):
    """A solve, from which one at hyperparameters near by may begin."""

    alpha: Float[np.ndarray, " L"]
    beta: Float[np.ndarray, " C"]
    change: Float[Array, "k1 n"]
    """what hyperparameters change little: α^{-½}(x − z), or c on the dual side"""
    terms: EvidenceTerms
    determinant: Estimate
    hint: Any = None
    """of the solver to itself"""

    def is_close(self, alpha: np.ndarray, beta: np.ndarray, shape: tuple[int, ...]) -> bool:
        """Whether every hyperparameter is within a factor of 4/3.

        Raises:
            ValueError: it is of another problem.
        """
        if self.change.shape != shape or self.alpha.shape != alpha.shape:
            raise ValueError(
                f"start is of a problem of shape {self.change.shape}, here it is {shape}: it is of "
                "another fit. Start without it."
            )
        logs = np.log(np.concatenate([alpha / self.alpha, beta / self.beta]))
        return bool(np.abs(logs).max() <= np.log(4 / 3))


class _Found(NamedTuple):
    """What a solve has found."""

    equations: Equations
    value: Float[Array, "k1 n"]
    """q"""
    units: Float[Array, "k1 r"]
    terms: EvidenceTerms
    determinant: Estimate
    """log det(I + WᵀW)"""
    report: SolverReport
    result: RESULTS
    hint: Any

    @property
    def at(self) -> Hyperparameters:
        """α and β."""
        return self.equations.at

    def moved(self, growth: float) -> "_Found":
        """With a log determinant that is larger."""
        value = self.determinant.value + growth
        log_evidence = self.terms.log_evidence - growth / 2
        return self._replace(
            determinant=self.determinant._replace(value=value),
            terms=self.terms._replace(log_evidence=log_evidence),
        )
