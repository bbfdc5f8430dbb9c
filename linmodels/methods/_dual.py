"""Exact inference on the observations' side, from the kernel K = W₀W₀ᵀ."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from linmodels._posterior import posterior_from_arrays
from linmodels._priors import GaussianPrior
from linmodels.krylov import Known, LowRankRoot
from linmodels.likelihoods import LOG_2PI
from linmodels.methods._dense import inverse_from_cholesky, inverse_triangle, scale_rows
from linmodels.methods._evidence_path import EvidencePath, require_one_each
from linmodels.methods._mean import QUICK_SIDE
from linmodels.methods._method import AbstractSystem, Evaluation, EvidenceTerms, Scales, Solution
from linmodels.methods._moments import Shift
from linmodels.methods._parameters import ParameterMap, as_operator, scales_of
from linmodels.operators import LowRankUpdate

COLUMNS_AT_ONCE = 4_096


class Rows(NamedTuple):
    """All whitened rows at unit noise, and the shift that takes the flat columns off them."""

    design: Float[np.ndarray, "N d"]
    """R₀Φ as it came, in the data's dtype"""
    targets: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, "N k"]
    output: Int[np.ndarray, " N"]
    rank: Float[np.ndarray, " C"]
    log_determinant: float
    raw_square: Float[np.ndarray, " C"]
    shift: Shift


class _Kernel(NamedTuple):
    """V = I + WWᵀ = LLᵀ at some hyperparameters, with the flat columns Z projected out."""

    lower: np.ndarray
    basis: np.ndarray
    """orthonormal basis Q of Z = R Φ_f"""
    triangle: np.ndarray
    """Z = Q·triangle"""
    targets: np.ndarray
    root_beta: np.ndarray
    """√β of every row"""


class DualSystem(AbstractSystem):
    """The kernel of every group of parameters at unit noise and α = 1."""

    prior: GaussianPrior
    reason: str
    rows: Rows
    kernels: Float[np.ndarray, "L N N"]
    parameters: ParameterMap
    prior_noise: Float[np.ndarray, "r k"]

    def scales(self) -> Scales:
        """Starts and caps from traces and from the targets with flat columns projected out."""
        count, rows, parameters = len(self.rows.rank), self.rows, self.parameters
        square = np.bincount(rows.output, rows.targets**2, minlength=count)
        information = np.einsum("lii->l", self.kernels)
        about = information, parameters.group_sizes
        return scales_of(*about, rows.rank, square, rows.raw_square, parameters.epsilon)

    def evaluate(self, alpha: np.ndarray, beta: np.ndarray, start: Any = None) -> Evaluation:
        """The evidence at α (L,), β (C,): O(N) for one of each, else one factorisation."""
        if len(alpha) == len(beta) == 1:
            return Evaluation(self.path.evaluate(alpha, beta))
        return Evaluation(self._terms(self._factorise(alpha, beta), alpha, beta))

    def solve(self, alpha: np.ndarray, beta: np.ndarray, start: Any = None) -> Solution:
        """The evidence and the posterior by Matheron's rule."""
        kernel = self._factorise(alpha, beta)
        mean = self._coordinates_from(kernel, alpha, kernel.targets, None)
        noise = self.rows.noise.astype(np.float64)
        deviations = self._coordinates_from(kernel, alpha, noise, self.prior_noise)
        push, shift = self.parameters.push, self.rows.shift
        posterior = posterior_from_arrays(
            self.parameters.structure,
            push(mean, shift, centred=True),
            push(deviations, shift, centred=False),
            self._covariance_factor(kernel, alpha),
            self.prior.mean,
        )
        return Solution(self._terms(kernel, alpha, beta), posterior, coordinates=mean)

    @property
    def _flat_rows(self) -> np.ndarray:
        shift = self.rows.shift.flat
        return self.rows.design[:, shift].astype(np.float64)

    def _columns(self) -> Iterator[tuple[slice, np.ndarray]]:
        return columns_of(self.rows, self.parameters)

    def _factorise(self, alpha: np.ndarray, beta: np.ndarray) -> _Kernel:
        root_beta = np.sqrt(beta)[self.rows.output]
        basis, triangle = np.linalg.qr(root_beta[:, None] * self._flat_rows)
        matrix = np.tensordot(1 / alpha, self.kernels, 1) * root_beta * root_beta[:, None]
        matrix = _project(basis, matrix)
        matrix[np.diag_indices_from(matrix)] += 1
        _require_resolved(matrix)
        lower = scipy.linalg.cholesky(matrix, lower=True, overwrite_a=True)
        targets = root_beta * self.rows.targets
        return _Kernel(lower, basis, triangle, targets, root_beta)

    def _terms(self, kernel: _Kernel, alpha: np.ndarray, beta: np.ndarray) -> EvidenceTerms:
        weights = inverse_from_cholesky(kernel.lower) - kernel.basis @ kernel.basis.T
        weighted = weights * kernel.root_beta * kernel.root_beta[:, None]
        residual = weights @ kernel.targets
        scaled = kernel.root_beta * residual
        dimension = np.einsum("ij,lij->l", weighted, self.kernels) / alpha
        norm = np.einsum("i,lij,j->l", scaled, self.kernels, scaled) / alpha
        count, num_flat = len(beta), kernel.basis.shape[1]
        sums = lambda values: np.bincount(self.rows.output, values, minlength=count)
        log_evidence = 0.5 * (
            self.rows.rank @ (np.log(beta) - LOG_2PI)
            + self.rows.log_determinant
            - residual @ residual
            - norm.sum()
            - 2 * np.log(np.diag(kernel.lower)).sum()
            - 2 * np.log(np.abs(np.diag(kernel.triangle))).sum()
            + num_flat * LOG_2PI
        )
        leverage = 1 - np.diag(weights)
        return EvidenceTerms(
            log_evidence, dimension, norm, sums(leverage), sums(residual**2) / beta
        )

    def _coordinates_from(self, kernel, alpha, values, prior_noise):
        """x = z + WᵀV⁻¹(values − Wz) at α = 1, flat ones by least squares on what is left."""
        scale, flat = self.parameters.scale(alpha), self.parameters.flat
        shape = (len(scale), *values.shape[1:])
        x = np.zeros(shape) if prior_noise is None else np.where(flat[:, None], 0, prior_noise)
        for columns, block in self._columns():
            values = values - scale_rows(
                kernel.root_beta, block @ scale_rows(scale[columns], x[columns])
            )
        solved = values - kernel.basis @ (kernel.basis.T @ values)
        solved = scipy.linalg.cho_solve((kernel.lower, True), solved)
        solved = scale_rows(kernel.root_beta, solved - kernel.basis @ (kernel.basis.T @ solved))
        for columns, block in self._columns():
            step = scale_rows(scale[columns], block.T @ solved)
            x[columns] += step
            values = values - scale_rows(kernel.root_beta, block @ scale_rows(scale[columns], step))
        coordinates = scale_rows(scale, x)
        left_over = kernel.basis.T @ values
        coordinates[flat] = scipy.linalg.solve_triangular(kernel.triangle, left_over)
        return coordinates

    def _covariance_factor(self, kernel: _Kernel, alpha) -> lx.AbstractLinearOperator:
        """F α^{-½} (D + U Vᵀ): never a d' × d' matrix.

        I − Wᵀ L⁻ᵀ(L + I)⁻¹ W is a square root of (I + WᵀW)⁻¹ (Andrews, 1968); rows for flat
        parameters follow from their regression on the others. D is 1, and 0 for flat parameters,
        whose spread may be anything beside 1.
        """
        scale, flat = self.parameters.scale(alpha), self.parameters.flat
        dtype = jnp.result_type(float)
        count, size = len(kernel.lower), len(scale)
        outer = inverse_triangle(kernel.lower).T
        inner = inverse_triangle(kernel.lower + np.eye(count))
        num_flat = int(flat.sum())
        left = np.zeros((size, count + num_flat), np.dtype(dtype))
        right = np.zeros((size, count + num_flat), np.dtype(dtype))
        regression = np.zeros((num_flat, size))
        for columns, block in self._columns():
            whitened = kernel.root_beta[:, None] * block * scale[columns]
            projected = whitened - kernel.basis @ (kernel.basis.T @ whitened)
            left[columns, :count] = -(projected.T @ outer)
            right[columns, :count] = (inner @ projected).T
            regression[:, columns] = kernel.basis.T @ whitened
        if num_flat:
            self._flat_rows_of_factor(kernel, regression, scale, left, right)
        diagonal = jnp.asarray(~flat, dtype)
        update = LowRankUpdate(diagonal, jnp.asarray(left), jnp.asarray(right))
        root = self.parameters.root
        units = scale if root is None else root * scale
        return as_operator(jnp.asarray(units, dtype)) @ update

    def _flat_rows_of_factor(self, kernel, regression, scale, left, right) -> None:
        """θ_f = G^{-½} x_f − C x_p: the rows of D + U Vᵀ for flat parameters, in place."""
        flat, count = self.parameters.flat, len(kernel.lower)
        root = scipy.linalg.solve_triangular(kernel.triangle, np.eye(len(regression)))
        regression = root @ regression
        units = scale if self.parameters.root is None else self.parameters.root * scale
        regression[:, ~flat] += self.rows.shift.columns * units[~flat]
        update = regression @ left[:, :count].astype(np.float64)
        left[np.flatnonzero(flat), count + np.arange(len(regression))] = 1
        right[:, count:] = -(regression + update @ right[:, :count].T.astype(np.float64)).T
        right[flat, count:] = root.T

    @property
    def has_path(self) -> bool:
        """Whether one α and one noise precision make a path."""
        return self.parameters.num_groups == len(self.rows.rank) == 1

    @cached_property
    def path(self) -> EvidencePath:
        """The evidence at every α and noise precision; see `AbstractSystem.path`."""
        require_one_each(self.parameters.num_groups, len(self.rows.rank))
        rows = self.rows
        basis, triangle = self._flat_basis
        values, vectors = self._eigenpairs
        squares = (vectors.T @ (rows.targets - basis @ (basis.T @ rows.targets))) ** 2
        kept = values > len(values) * np.finfo(float).eps * max(values[-1], 0)
        return EvidencePath(
            eigenvalues=np.where(kept, values, 0),
            squares=np.where(kept, squares, 0),
            remainder=float(squares[~kept].sum()),
            num_flat=basis.shape[1],
            flat_log_determinant=float(2 * np.log(np.abs(np.diag(triangle))).sum()),
            rank=float(rows.rank[0]),
            log_determinant=rows.log_determinant,
        )

    def for_similar(self, alpha: np.ndarray, beta: np.ndarray) -> Known | None:
        """Eigenvectors of WᵀW, Wᵀv/√λ, where another kernel would cost more."""
        if len(self.rows.targets) <= QUICK_SIDE or not len(alpha) == len(beta) == 1:
            return None
        values, directions = self._directions
        values = jnp.asarray(beta[0] / alpha[0] * values, float)
        return Known(known=LowRankRoot(directions, values))

    @cached_property
    def _flat_basis(self) -> tuple[np.ndarray, np.ndarray]:
        """Q and R of the flat columns."""
        basis, triangle = np.linalg.qr(self._flat_rows)
        return basis, triangle

    @cached_property
    def _eigenpairs(self) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "N N"]]:
        """Of W₀W₀ᵀ with flat columns projected out."""
        values, vectors = np.linalg.eigh(_project(self._flat_basis[0], self.kernels[0].copy()))
        return values, vectors

    @cached_property
    def _directions(self) -> tuple[Float[np.ndarray, " q"], Float[Array, "q r"]]:
        """Eigenvalues of W₀ᵀW₀ that single precision sees, and their eigenvectors."""
        values, vectors = self._eigenpairs
        kept = values > np.finfo(np.float32).eps * max(values[-1], 0)
        values, vectors = values[kept], vectors[:, kept] / np.sqrt(values[kept])
        basis, _ = self._flat_basis
        vectors = (vectors - basis @ (basis.T @ vectors)).T
        parts = [np.asarray(vectors @ block, np.float32) for _, block in self._columns()]
        return values, jnp.asarray(np.concatenate(parts, axis=1), float)


def _require_resolved(matrix: np.ndarray) -> None:
    """Refuses V = I + WWᵀ where rounding of WWᵀ swamps I and rows are dependent.

    Raises:
        RuntimeError: as said.
    """
    rounding = np.finfo(float).eps * np.diag(matrix).max()
    if rounding > 0.1 and np.linalg.eigvalsh(matrix)[0] < 10 * len(matrix) * rounding:
        raise RuntimeError(
            f"The signal is {np.diag(matrix).max():.1e} times the noise and rows are linearly "
            'dependent: beyond float64 on the observations\' side. Use Exact(side="primal"), or '
            "give a larger noise."
        )


def _project(basis: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """(I − QQᵀ) matrix (I − QQᵀ)."""
    if basis.shape[1] == 0:
        return matrix
    half = matrix - basis @ (basis.T @ matrix)
    return half - (half @ basis) @ basis.T


def columns_of(rows: Rows, parameters: ParameterMap | None) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of W₀ = R₀Φ F in float64, flat columns taken off; of R₀Φ where parameters is None."""
    root = None if parameters is None else parameters.root
    if root is not None and root.ndim == 2:
        yield slice(0, root.shape[1]), rows.design.astype(np.float64) @ root
        return
    flat, basis = rows.shift.flat, rows.design[:, rows.shift.flat].astype(np.float64)
    shift = rows.shift.every_column
    for start in range(0, len(flat), COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        block = rows.design[:, columns].astype(np.float64) - basis @ shift[:, columns]
        block[:, flat[columns]] = 0
        yield columns, block if root is None else block * root[columns]


def kernels(columns: Iterator[tuple[slice, np.ndarray]], parameters: ParameterMap, size: int):
    """K_l = W₀,l W₀,lᵀ for every group of parameters."""
    result = np.zeros((parameters.num_groups, size, size))
    for where, block in columns:
        for group in range(parameters.num_groups):
            mine = (
                block if parameters.num_groups == 1 else block[:, parameters.group[where] == group]
            )
            if mine.shape[1]:
                result[group] += mine @ mine.T
    return result
