"""Study 01, every way to guess: what each procedure is worth, and how often it lies.

Steinke, Nasr, Jagielski, arXiv:2305.08846, allow more than a fixed number of guesses about fair
coins: abstention, biased coins, confidences, numbers of guesses that depend on the output, training
sets of fixed size. Each is tried here on simulated mechanisms of known ε, next to what looks alike
and is not allowed. A procedure is *false* where its bound exceeds the truth; a valid one may be so
in a share ``significance`` of audits, and no more.

Fixed size is also tried on real training (:func:`pair_audit`): of each pair of canaries, +C and −C
along one coordinate, a fair coin puts one into the training set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure
from scipy import special, stats

from lib import audited_run, canaries, figures, intervals, one_run, trade_off
from lib import one_run_white_box as white_box
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import (
    AUDIT_FIELDS,
    BOUND_BELOW_TRUTH,
    DELTA,
    MECHANISM_FIELDS,
    SIGNIFICANCE,
    THEORETICAL_EPSILON,
    verdict_row,
)
from lib.tables import Field, Table

M = 1000  # canaries of a simulated audit
EPSILON = 1.0  # of every simulated mechanism that is not silent
SMALL_DELTA = 1e-5
GRID = (5, 10, 20, 50, 100, 150, 200, 250, 300, 400, 500)  # of each kind, where the best is taken
SIGNIFICANCE_LEVEL = 0.05
BIASED = 0.1  # chance of "in" of the biased coins
N_SURE = 4  # of the twelve confidences below
WEIGHTS = np.array([1.0] * N_SURE + [0.75] * 8)  # their sum is 10
# A verification of many honest rates should not cry wolf: one in 10,000 a row.
SURELY = 1 - 2e-4

PARAMETERS = {
    "n_simulated_audits": Parameter("int", "simulated audits of each procedure", minimum=20),
    "pair_epsilons": Parameter(
        "floats", "replace-one ε of the runs with pairs", above=0, maximum=100
    ),
    "pair_runs": Parameter("int", "training runs with pairs for each ε and q", minimum=1),
}
RULES = ()


# -------------------------------------------------------------------------- simulated audits

Bounds = np.ndarray


def fair_coins(rng, n: int) -> np.ndarray:
    """(n, m) fair coins."""
    return rng.random((n, M)) < 0.5


def responses(rng, coins: np.ndarray) -> np.ndarray:
    """Randomised response: the coin, or with probability 1/(1 + e^ε) its opposite."""
    return coins ^ (rng.random(coins.shape) > special.expit(EPSILON))


def laplace(rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Coins, and coin + Laplace(1/ε): ε-DP for each canary."""
    coins = fair_coins(rng, n)
    return coins, coins + rng.laplace(scale=1 / EPSILON, size=coins.shape)


@functools.cache
def gaussian_noise() -> float:
    """σ of the Gaussian mechanism that is (ε, δ)-DP at sensitivity 1, and barely so."""
    from lib import accounting

    sigma = accounting.noise_multiplier(
        epsilon=EPSILON, delta=SMALL_DELTA, sampling_rate=1.0, steps=1
    )
    return audited_run.rounded_up(sigma, 4)


def gaussian(rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Coins, and coin + N(0, σ²)."""
    coins = fair_coins(rng, n)
    return coins, coins + gaussian_noise() * rng.standard_normal(coins.shape)


def noise_alone(rng, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Coins, and scores that know nothing of them: 0-DP."""
    return fair_coins(rng, n), rng.standard_normal((n, M))


def right_by_count(coins, scores) -> tuple[np.ndarray, np.ndarray]:
    """(n, m + 1) right guesses of the k highest as "in", and of the k lowest as "out"."""
    in_order = np.take_along_axis(coins, np.argsort(scores, axis=1), axis=1)
    zeros = np.zeros((len(coins), 1), dtype=int)
    positive = np.concatenate([zeros, np.cumsum(in_order[:, ::-1], axis=1)], axis=1)
    negative = np.concatenate([zeros, np.cumsum(~in_order, axis=1)], axis=1)
    return positive, negative


def bound_of(n_guesses, n_correct, *, delta=0.0, significance=SIGNIFICANCE_LEVEL, **options):
    """Bounds by Theorem 5.2, each distinct pair of counts computed once."""
    pairs = np.stack(np.broadcast_arrays(n_guesses, n_correct), axis=-1)
    distinct, place = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    bounds = one_run.epsilon_lower_bound(
        n_canaries=M,
        n_guesses=distinct[:, 0],
        n_correct=distinct[:, 1],
        delta=delta,
        significance=significance,
        **options,
    )
    return np.reshape(bounds[place.ravel()], pairs.shape[:-1])


def _fixed(draw: Callable, n_positive: int, n_negative: int, delta: float):
    def bounds(rng, n: int) -> Bounds:
        positive, negative = right_by_count(*draw(rng, n))
        v = positive[:, n_positive] + negative[:, n_negative]
        return bound_of(n_positive + n_negative, v, delta=delta)

    return bounds


def everybody(rng, n: int) -> Bounds:
    """Guess what the response says, of everybody."""
    coins = fair_coins(rng, n)
    return bound_of(M, (responses(rng, coins) == coins).sum(axis=1))


def _best_of_grid(draw: Callable, n_tests: int):
    def bounds(rng, n: int) -> Bounds:
        positive, negative = right_by_count(*draw(rng, n))
        k = np.array(GRID)
        each = bound_of(
            2 * k, positive[:, k] + negative[:, k], significance=SIGNIFICANCE_LEVEL / n_tests
        )
        return each.max(axis=1)

    return bounds


def split(rng, n: int) -> Bounds:
    """Counts chosen on one half of the canaries, coins and all; bound on the other."""
    coins, scores = laplace(rng, n)
    halves = [(k, k) for k in GRID if 2 * k <= M // 2]
    return np.array(
        [
            one_run.split_audit(
                scores[i], coins[i], counts=halves, delta=0.0, rng=rng
            ).epsilon_lower_bound
            for i in range(n)
        ]
    )


def _from_scores(draw: Callable, far: Callable[[], float], delta: float):
    """Guess about every canary whose score is far from the middle, however many that are."""

    def bounds(rng, n: int) -> Bounds:
        coins, scores = draw(rng, n)
        guessed = np.abs(scores - 0.5) > far()
        right = guessed & ((scores > 0.5) == coins)
        counts = (guessed.sum(axis=1), right.sum(axis=1))
        return bound_of(*counts, delta=delta, counts_chosen="from_scores")

    return bounds


def _out_of_everybody(fair_formula: bool):
    """Biased coins, a silent mechanism, and the guess "out" about everybody."""

    def bounds(rng, n: int) -> Bounds:
        v = rng.binomial(M, 1 - BIASED, n)
        if fair_formula:
            return bound_of(M, v)
        return _biased_bound(np.zeros(n, dtype=int), np.full(n, M), v)

    return bounds


def biased_responses(rng, n: int) -> Bounds:
    """Biased coins, randomised response, and the guess that it says."""
    coins = rng.random((n, M)) < BIASED
    says = responses(rng, coins)
    n_positive = says.sum(axis=1)
    return _biased_bound(n_positive, M - n_positive, (says == coins).sum(axis=1))


def _biased_bound(n_positive, n_negative, v) -> Bounds:
    return one_run.epsilon_lower_bound_biased(
        n_canaries=M,
        n_positive=n_positive,
        n_negative=n_negative,
        n_correct=v,
        inclusion_probability=BIASED,
        delta=0.0,
    )


def confidences(scores: np.ndarray) -> np.ndarray:
    """Log-likelihood ratios of Laplace(1) scores, which are in [−1, 1], to the nearest quarter.

    Rounded because few different confidences make the exact sum quick to compute.
    """
    return np.round(4 * (np.abs(scores) - np.abs(scores - 1))) / 4


def weighted(rng, n: int) -> Bounds:
    """Every canary guessed with its confidence, the sum's exact distribution."""
    coins, scores = laplace(rng, n)
    return np.array(
        [
            one_run.epsilon_lower_bound_weighted(confidences(scores[i]), coins[i], delta=0.0)
            for i in range(n)
        ]
    )


def rounded(rng, n: int) -> Bounds:
    """The same confidences rounded at random to whole guesses or none."""
    coins, scores = laplace(rng, n)
    whole = np.stack([one_run.round_guesses(each, rng=rng) for each in confidences(scores)])
    right = (whole != 0) & ((whole > 0) == coins)
    counts = (np.count_nonzero(whole, axis=1), right.sum(axis=1))
    return bound_of(*counts, counts_chosen="from_scores")


def _twelve_confidences(exact: bool):
    """Twelve responses, believed by the confidences of :data:`WEIGHTS`, which add up to ten.

    Taken for ten guesses of confidence 1, their sum is held against a distribution that lives on
    whole numbers and is too narrow at some of them.
    """

    @functools.cache
    def exact_bound(right: tuple[bool, ...]) -> float:
        return one_run.epsilon_lower_bound_weighted(WEIGHTS, np.array(right), delta=0.0)

    def bounds(rng, n: int) -> Bounds:
        coins = fair_coins(rng, n)[:, : WEIGHTS.size]
        right = responses(rng, coins) == coins
        if exact:
            # Which of equal confidences are right does not matter, so few cases differ.
            in_order = np.hstack([np.sort(right[:, :N_SURE]), np.sort(right[:, N_SURE:])])
            return np.array([exact_bound(tuple(each)) for each in in_order.tolist()])
        return bound_of(round(WEIGHTS.sum()), np.ceil(right @ WEIGHTS - 1e-9).astype(int))

    return bounds


def fixed_size(rng, n: int) -> Bounds:
    """One of each pair is in; a randomised response says which."""
    pairs = M // 2
    first_in = rng.random((n, pairs)) < 0.5
    says_first = responses(rng, first_in)
    return np.array(
        [
            one_run.audit_pairs(
                np.stack([says_first[i], ~says_first[i]], axis=1).astype(float),
                np.stack([first_in[i], ~first_in[i]], axis=1),
                n_guesses=pairs,
                delta=0.0,
                rng=rng,
            ).epsilon_lower_bound
            for i in range(n)
        ]
    )


def _gaussian_curve(n_guesses: int):
    """Randomised response held against Gaussian curves, which are not its own."""

    def bounds(rng, n: int) -> Bounds:
        return trade_off.smallest_unrefuted_epsilon(
            n_canaries=M,
            n_guesses=n_guesses,
            n_correct=rng.binomial(n_guesses, special.expit(EPSILON), n),
            delta=SMALL_DELTA,
            family_name=trade_off.Gaussian.name,
        )

    return bounds


def _many_runs(best: bool):
    """Clopper and Pearson on 2·m independent runs, at threshold 1 or at the best of all."""

    def bounds(rng, n: int) -> Bounds:
        first = np.sort(rng.laplace(scale=1 / EPSILON, size=(n, M)))
        second = np.sort(1 + rng.laplace(scale=1 / EPSILON, size=(n, M)))
        wrong = []
        for out, into in zip(first, second, strict=True):
            at = np.concatenate([out, into]) if best else np.array([1.0])
            wrong.append(
                (M - np.searchsorted(out, at, "right"), np.searchsorted(into, at, "right"))
            )
        pairs = np.moveaxis(np.array(wrong), 1, -1)
        distinct, place = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
        each = one_run.epsilon_lower_bound_from_runs(
            n_first=M,
            n_wrong_first=distinct[:, 0],
            n_second=M,
            n_wrong_second=distinct[:, 1],
            delta=0.0,
            significance=SIGNIFICANCE_LEVEL,
        )
        return each[place.ravel()].reshape(n, -1).max(axis=1)

    return bounds


@dataclass(frozen=True)
class Procedure:
    """A way to come to a bound, the mechanism it is tried on, and whether theory allows it."""

    mechanism: str
    bounds: Callable  # (rng, n) → (n,) bounds
    valid: bool = True
    epsilon: float = EPSILON
    delta: float = 0.0
    share: float = 1.0  # of the simulated audits; below 1 where an audit is dear


RESPONSE, LAPLACE, GAUSSIAN, SILENT = (
    "randomised response",
    "Laplace",
    "Gaussian",
    "says nothing",
)
PROCEDURES = {
    "fixed counts, 'in' and 'out'": Procedure(LAPLACE, _fixed(laplace, 100, 100, 0.0)),
    "fixed counts, 'in' alone": Procedure(LAPLACE, _fixed(laplace, 200, 0, 0.0)),
    "fixed counts, δ > 0": Procedure(
        GAUSSIAN, _fixed(gaussian, 100, 100, SMALL_DELTA), delta=SMALL_DELTA
    ),
    "everybody guessed": Procedure(RESPONSE, everybody),
    "best of 11 counts, uncorrected": Procedure(LAPLACE, _best_of_grid(laplace, 1), valid=False),
    "best of 11 counts, no signal": Procedure(
        SILENT, _best_of_grid(noise_alone, 1), valid=False, epsilon=0.0
    ),
    "best of 11 counts, Bonferroni": Procedure(LAPLACE, _best_of_grid(laplace, len(GRID))),
    "counts chosen on half, bound on half": Procedure(LAPLACE, split),
    "counts from the scores, δ = 0": Procedure(LAPLACE, _from_scores(laplace, lambda: 1.5, 0.0)),
    "counts from the scores, δ > 0": Procedure(
        GAUSSIAN,
        _from_scores(gaussian, lambda: 1.5 * gaussian_noise(), SMALL_DELTA),
        delta=SMALL_DELTA,
    ),
    "biased coins, all 'out', fair formula": Procedure(
        SILENT, _out_of_everybody(fair_formula=True), valid=False, epsilon=0.0
    ),
    "biased coins, all 'out', own formula": Procedure(
        SILENT, _out_of_everybody(fair_formula=False), epsilon=0.0
    ),
    "biased coins, everybody guessed": Procedure(RESPONSE, biased_responses),
    "confidences, exact sum": Procedure(LAPLACE, weighted, share=0.1),
    "confidences, rounded at random": Procedure(LAPLACE, rounded),
    "12 confidences, taken for 10 guesses": Procedure(
        RESPONSE, _twelve_confidences(exact=False), valid=False
    ),
    "12 confidences, exact sum": Procedure(RESPONSE, _twelve_confidences(exact=True)),
    "fixed size, one of each pair": Procedure(RESPONSE, fixed_size),
    "Gaussian curve as a bound, 200 guesses": Procedure(
        RESPONSE, _gaussian_curve(200), valid=False, delta=SMALL_DELTA
    ),
    "Gaussian curve as a bound, everybody": Procedure(
        RESPONSE, _gaussian_curve(M), valid=False, delta=SMALL_DELTA
    ),
    "many runs, fixed threshold": Procedure(LAPLACE, _many_runs(best=False)),
    "many runs, best threshold": Procedure(LAPLACE, _many_runs(best=True), valid=False),
}


def procedure(cell: dict, streams, dataset: None) -> list[dict]:
    """Audit one procedure's mechanism many times and count how often the bound is false."""
    tried = PROCEDURES[cell["procedure"]]
    n = max(20, round(cell["n_audits"] * tried.share))
    bounds = np.concatenate(
        # In blocks, so that memory stays small whatever the number of audits.
        [
            np.asarray(tried.bounds(streams.generator(f"block {start}"), min(100, n - start)))
            for start in range(0, n, 100)
        ]
    )
    # What computes a bound to 1e-9 may not be called false for less.
    n_false = int((bounds > tried.epsilon + 1e-6).sum())
    counts = {"n_successes": n_false, "n_trials": n}
    low, high = intervals.rate_interval(n_false, n)
    return [
        {
            "procedure": cell["procedure"],
            "mechanism": tried.mechanism,
            "valid": tried.valid,
            "epsilon": tried.epsilon,
            "delta": tried.delta,
            "significance": SIGNIFICANCE_LEVEL,
            "n_audits": n,
            "n_false": n_false,
            "rate_low": low,
            "rate_high": high,
            "rate_surely": float(intervals.rate_lower(**counts, confidence=SURELY)),
            "allowed": SIGNIFICANCE_LEVEL if tried.valid else None,
            "mean_bound": float(bounds.mean()),
            "standard_error": float(bounds.std(ddof=1) / np.sqrt(n)),
        }
    ]


# ------------------------------------------------------------------------------ pairs, trained


class PairCanaries:
    """n pairs of canaries, +C and −C along a coordinate of the pair's own; one of each is in.

    Hand :meth:`gradient` and :meth:`observe` to :func:`lib.dpsgd.train`, then read :meth:`scores`.
    The ordinary examples' part of a release is subtracted, and only the log-likelihood ratio kept:
    the best score of :class:`lib.canaries.DiracCanaries`.
    """

    def __init__(
        self,
        *,
        n_pairs: int,
        n_parameters: int,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float,
        coin_rng: np.random.Generator,
        place_rng: np.random.Generator,
        batch_rng: np.random.Generator,
    ):
        """Toss the coins and choose the coordinates.

        Args:
            n_pairs: at most ``n_parameters``.
            n_parameters: d, length of the flat gradient.
            clip_norm: C.
            noise_multiplier: σ > 0.
            sampling_rate: q.
            coin_rng: which of each pair is in. Each purpose has a stream of its own.
            place_rng: coordinates, which the auditor knows.
            batch_rng: which of those that are in are in which batch.

        Raises:
            WorkbookError: for more pairs than parameters.
        """
        if not 1 <= n_pairs <= n_parameters:
            raise WorkbookError(
                f"n_pairs = {n_pairs}; allowed: 1 to {n_parameters}, the model's parameters"
            )
        self.n_parameters = n_parameters
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier
        self.sampling_rate = sampling_rate
        self.included = _one_of_each(coin_rng, n_pairs)
        self.places = place_rng.permutation(n_parameters)[:n_pairs]
        self._batch_rng = batch_rng
        self._scores = np.zeros((n_pairs, 2))

    def gradient(self, step: int) -> np.ndarray:
        """(d,) float32 sum of the gradients of the canaries in this step's batch."""
        sampled = self._batch_rng.random(len(self.included)) < self.sampling_rate
        total = np.zeros(self.n_parameters, dtype=np.float32)
        total[self.places] = self.clip_norm * sampled * _signs(self.included)
        return total

    def observe(self, gradient: np.ndarray, ordinary: np.ndarray) -> None:
        """Weigh one released gradient, both (d,) sums: as released, and the ordinary part of it."""
        self._scores += _evidence(
            (gradient[self.places] - ordinary[self.places]) / self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
        )

    def scores(self) -> np.ndarray:
        """(n, 2) evidence for either of a pair, in nats; only their difference matters."""
        return self._scores.copy()


def _one_of_each(rng, n_pairs: int) -> np.ndarray:
    """(n, 2) booleans, one True in each row, by fair coins."""
    first_in = rng.random(n_pairs) < 0.5
    return np.stack([first_in, ~first_in], axis=1)


def _signs(included: np.ndarray) -> np.ndarray:
    """(n,) +1 where the first of a pair is in, −1 where the second is."""
    return np.where(included[:, 0], 1.0, -1.0)


def _evidence(along: np.ndarray, **mechanism) -> np.ndarray:
    """(n, 2) log-likelihood ratios of +C in, and of −C in, each against neither."""
    return np.stack(
        [canaries.log_likelihood_ratio(sign * along, **mechanism) for sign in (1, -1)], axis=1
    )


def pair_simulations(cell: dict, streams):
    """(coins, scores) of ``n_simulations`` audits by pairs that nothing disturbs but noise."""
    mechanism = {name: cell[name] for name in ("noise_multiplier", "sampling_rate")}
    for number in range(cell["n_simulations"]):
        included = _one_of_each(streams.generator(f"coins {number}"), cell["n_pairs"])
        batch_rng = streams.generator(f"batches {number}")
        noise_rng = streams.generator(f"noise {number}")
        scores = np.zeros(included.shape)
        for _ in range(cell["steps"]):
            sampled = batch_rng.random(len(included)) < cell["sampling_rate"]
            noise = cell["noise_multiplier"] * noise_rng.standard_normal(len(included))
            scores += _evidence(sampled * _signs(included) + noise, **mechanism)
        yield included, scores


def pair_plan(cell: dict, streams, dataset: None) -> list[dict]:
    """Settle noise under replace-one accounting, and the number of pairs to guess, before any run.

    That with the largest bound at its expected number of right guesses, over ``n_simulations``
    audits of the idealised mechanism.
    """
    from lib import accounting

    planned = cell | audited_run.settle_noise(cell, neighboring="replace_one")
    grid = np.unique(np.geomspace(1, cell["n_pairs"], 60).astype(int))
    n_correct = np.zeros(grid.size)
    for included, scores in pair_simulations(planned, streams):
        difference = scores[:, 0] - scores[:, 1]
        right = (difference > 0) == included[:, 0]
        n_correct += np.cumsum(right[np.argsort(-np.abs(difference))])[grid - 1]
    best = one_run.index_of_largest_bound(
        n_canaries=cell["n_pairs"],
        n_guesses=grid,
        n_correct=(n_correct / cell["n_simulations"]).astype(int),
        delta=cell["delta"],
        significance=cell["significance"],
    )
    add_remove = accounting.epsilon(
        **{name: planned[name] for name in ("noise_multiplier", "delta", "sampling_rate", "steps")}
    )
    return [
        planned
        | {
            "n_guesses": int(grid[best]),
            "add_remove_epsilon": audited_run.rounded_up(add_remove, 6),
        }
    ]


def pair_ceiling(cell: dict, streams, dataset: None) -> list[dict]:
    """Audit the idealised mechanism ``n_simulations`` times, on other streams than the plan's."""
    return [
        {"run": number} | _pair_row(cell, scores, included, streams.generator(f"ties {number}"))
        for number, (included, scores) in enumerate(pair_simulations(cell, streams))
    ]


def pair_audit(cell: dict, streams, dataset) -> list[dict]:
    """Train a network by DP-SGD with pairs of canaries, and audit it once."""
    _, planted, _ = audited_run.train(
        cell,
        streams,
        dataset,
        lambda n_parameters: PairCanaries(
            n_pairs=cell["n_pairs"],
            n_parameters=n_parameters,
            clip_norm=cell["clip_norm"],
            noise_multiplier=cell["noise_multiplier"],
            sampling_rate=cell["sampling_rate"],
            coin_rng=streams.generator("coins"),
            place_rng=streams.generator("places"),
            batch_rng=streams.generator("canary batches"),
        ),
    )
    ties = streams.generator("ties")
    return [{"run": cell["run"]} | _pair_row(cell, planted.scores(), planted.included, ties)]


def _pair_row(cell: dict, scores, included, rng) -> dict:
    result = one_run.audit_pairs(
        scores,
        included,
        n_guesses=cell["n_guesses"],
        delta=cell["delta"],
        significance=cell["significance"],
        rng=rng,
    )
    return (
        audited_run.mechanism_row(cell)
        | audited_run.counts_row(result)
        | {"epsilon_lower_bound": result.epsilon_lower_bound}
    )


# --------------------------------------------------------------------- from parameters to cells


def procedure_cells(session) -> list[dict]:
    """One cell for each procedure."""
    return [{"procedure": name, "n_audits": session.p.n_simulated_audits} for name in PROCEDURES]


def pair_plan_cells(session) -> list[dict]:
    """One cell for each mechanism: the sweeps' base point at each ε, q = 1 and q < 1."""
    p = session.p
    n_pairs, _, steps = p.sweep_base
    return [
        {
            "epsilon": epsilon,
            "delta": p.delta,
            "sampling_rate": rate,
            "steps": steps,
            "significance": p.significance,
            "n_pairs": n_pairs,
            "n_simulations": p.n_simulations,
        }
        for rate in (1.0, p.sweep_sampling_rate)
        for epsilon in p.pair_epsilons
    ]


def pair_ceiling_cells(session) -> list[dict]:
    """One cell for each plan."""
    return session.tables["pair_plans"].drop(columns="add_remove_epsilon").to_dict("records")


def pair_audit_cells(session) -> list[dict]:
    """One cell for each training run."""
    p = session.p
    training = {
        "n_train": p.sweep_base[1],
        "network": p.network,
        "clip_norm": p.clip_norm,
        "learning_rate": p.learning_rate,
        "device": p.device,
    }
    plans = session.tables["pair_plans"].drop(columns=["add_remove_epsilon", "n_simulations"])
    return [
        plan | training | {"run": run}
        for plan in plans.to_dict("records")
        for run in range(p.pair_runs)
    ]


# ------------------------------------------------------------------------------------ tables


def _rate_field(name: str, end: str, meaning: str, **constants) -> Field:
    recipe = {
        "function": f"intervals.rate_{end}",
        "columns": {"n_successes": "n_false", "n_trials": "n_audits"},
    }
    if constants:
        recipe["constants"] = constants
    return Field(name, "number", "", meaning, minimum=0, maximum=1, recipe=recipe)


_REPLACE_ONE_EPSILON = replace(
    THEORETICAL_EPSILON,
    meaning="ε of the mechanism at δ under replace-one accounting, from above",
    recipe=THEORETICAL_EPSILON.recipe | {"constants": {"neighboring": "replace_one"}},
)
_PAIR_MECHANISM_FIELDS = tuple(
    _REPLACE_ONE_EPSILON if field is THEORETICAL_EPSILON else field for field in MECHANISM_FIELDS
)
_PAIR_FIELDS = (
    Field("run", "integer", "", "number of the run or simulation", minimum=0),
    *_PAIR_MECHANISM_FIELDS,
    *AUDIT_FIELDS,
)

TABLES = {
    "procedures": Table(
        fields=(
            Field("procedure", "string", "", "how the bound comes about"),
            Field("mechanism", "string", "", "what is audited"),
            Field("valid", "boolean", "", "whether theory allows the procedure"),
            Field("epsilon", "number", "nats", "true ε at δ", minimum=0),
            DELTA,
            SIGNIFICANCE,
            Field("n_audits", "integer", "", "simulated audits", minimum=1),
            Field("n_false", "integer", "", "of these, with a bound above the truth", minimum=0),
            _rate_field("rate_low", "lower", "lower end of the false rate's 95 % interval"),
            _rate_field("rate_high", "upper", "upper end of the false rate's 95 % interval"),
            _rate_field(
                "rate_surely",
                "lower",
                "what the false rate is above at 99.99 % confidence",
                confidence=SURELY,
            ),
            Field(
                "allowed",
                "number",
                "",
                "false rate that is allowed; none where nothing is promised",
                required=False,
                minimum=0,
                maximum=1,
            ),
            Field("mean_bound", "number", "nats", "mean bound", minimum=0),
            Field("standard_error", "number", "nats", "of the mean bound", minimum=0),
        ),
        key=("procedure",),
        meaning="many simulated audits by one procedure",
        claims=({"lower_bound": "rate_surely", "truth": "allowed"},),
    ),
    "pair_plans": Table(
        fields=(
            *_PAIR_MECHANISM_FIELDS,
            replace(
                THEORETICAL_EPSILON,
                name="add_remove_epsilon",
                meaning="ε of the same noise at δ if neighbours had one example more or less",
            ),
            SIGNIFICANCE,
            Field("n_pairs", "integer", "", "pairs of canaries", minimum=1),
            Field("n_guesses", "integer", "", "pairs to guess", minimum=0),
            Field("n_simulations", "integer", "", "simulated audits", minimum=2),
        ),
        key=("sampling_rate", "epsilon"),
        meaning="one mechanism that is audited by pairs, settled before any run",
    ),
    "pair_ceiling": Table(
        fields=_PAIR_FIELDS,
        key=("sampling_rate", "epsilon", "run"),
        meaning="one audit by pairs of the idealised mechanism; a canary of the columns is a pair",
        claims=BOUND_BELOW_TRUTH,
    ),
    "pairs": Table(
        fields=_PAIR_FIELDS,
        key=("sampling_rate", "epsilon", "run"),
        meaning="one training run audited by pairs; a canary of the columns is a pair",
        claims=BOUND_BELOW_TRUTH,
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Every procedure with its false rate and what it is worth."""
    tried = tables["procedures"]
    return pd.DataFrame(
        {
            "procedure": tried["procedure"],
            "mechanism": tried["mechanism"],
            "true ε": tried["epsilon"],
            "allowed": np.where(tried["valid"], "yes", "no"),
            "false": tried["n_false"],
            "of": tried["n_audits"],
            "false rate": tried["n_false"] / tried["n_audits"],
            "low": tried["rate_low"],
            "high": tried["rate_high"],
            "mean bound": tried["mean_bound"],
        }
    )


def pair_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Bounds by pairs for each mechanism: mean with its 95 % interval, and the ceiling."""
    rows = []
    for plan in tables["pair_plans"].to_dict("records"):
        at = _same_mechanism(tables["pairs"], plan)
        simulated = _same_mechanism(tables["pair_ceiling"], plan)
        mean, low, high = intervals.mean_interval(at, simulated)
        best = simulated.mean()
        rows.append(
            {
                "q": plan["sampling_rate"],
                "ε, replace one": plan["epsilon"],
                "ε of this noise, add or remove": plan["add_remove_epsilon"],
                "bound": mean,
                "low": max(low, 0.0),
                "high": high,
                "ceiling": best,
                "of ceiling": mean / best if best > 0 else np.nan,
                "runs": len(at),
                "guesses": plan["n_guesses"],
            }
        )
    return pd.DataFrame(rows)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Whether what is allowed keeps its promise, what is not breaks it, and what pairs reach."""
    tried = tables["procedures"]
    rows = [_valid_verdict(tried[tried["valid"]])]
    rows += [_invalid_verdict(row) for row in tried[~tried["valid"]].to_dict("records")]
    for rate, plans in tables["pair_plans"].groupby("sampling_rate", sort=False):
        rows.append(_pairs_verdict(rate, plans, tables))
    rows.append(_notion_verdict(tables))
    return rows


def _valid_verdict(valid: pd.DataFrame) -> dict:
    rates = valid["n_false"] / valid["n_audits"]
    worst = valid.loc[rates.idxmax()]
    return verdict_row(
        "false bounds of the procedures that theory allows, the largest rate",
        "at most 5 %",
        (float(rates.max()), float(worst["rate_low"]), float(worst["rate_high"])),
        "agrees" if (valid["rate_surely"] <= valid["allowed"]).all() else "differs: more",
        f"{worst['procedure']}, {worst['n_false']} of {worst['n_audits']} simulated audits: the "
        f"largest of {len(valid)} rates, so it lies high by chance; each is held against 5 % at "
        "99.99 % confidence",
    )


def _invalid_verdict(row: dict) -> dict:
    return verdict_row(
        f"false bounds of what theory does not allow, {row['procedure']} ({row['mechanism']})",
        "nothing promised",
        (row["n_false"] / row["n_audits"], row["rate_low"], row["rate_high"]),
        "above 5 %" if row["rate_low"] > row["significance"] else "not distinguishable from 5 %",
        f"{row['n_false']} of {row['n_audits']} simulated audits; mean bound "
        f"{row['mean_bound']:.2f}, truth {row['epsilon']:g}",
    )


def _pairs_verdict(rate: float, plans: pd.DataFrame, tables: dict[str, pd.DataFrame]) -> dict:
    """Share of the ceiling, and the ε of the same noise under the other notion."""
    pairs = [
        tuple(_same_mechanism(tables[name], plan) for name in ("pairs", "pair_ceiling"))
        for plan in plans.to_dict("records")
    ]
    share = white_box.share_of_ceiling(pairs) or (0.0, 0.0)
    row = white_box.ceiling_verdict(f"one of each pair, q = {rate:g}", *share)
    listed = {
        name: ", ".join(f"{value:.3g}" for value in plans[name])
        for name in ("epsilon", "add_remove_epsilon")
    }
    return row | {
        "reason": f"{row['reason']}; noise for ε = {listed['epsilon']} under replace-one has "
        f"ε = {listed['add_remove_epsilon']} under add/remove"
    }


def _notion_verdict(tables: dict[str, pd.DataFrame]) -> dict:
    """Whether bounds by pairs may be held against an add/remove ε: at the least noise, q = 1."""
    plans = tables["pair_plans"]
    plan = plans.loc[plans[plans["sampling_rate"] == 1]["epsilon"].idxmax()].to_dict()
    mean, low, high = intervals.mean_interval(
        _same_mechanism(tables["pairs"], plan), _same_mechanism(tables["pair_ceiling"], plan)
    )
    allowed = plan["add_remove_epsilon"]
    return verdict_row(
        "bound by pairs over the add/remove ε of the same noise, q = 1",
        "another notion of privacy",
        (mean / allowed, low / allowed, high / allowed),
        "agrees: it exceeds the other notion's ε" if low > allowed else "not distinguishable",
        f"mean bound {mean:.2f}; the noise has ε = {plan['theoretical_epsilon']:.3g} by "
        f"replace-one and {allowed:.3g} by add/remove accounting, so above 1 is no violation",
    )


def _same_mechanism(audits: pd.DataFrame, plan: dict) -> pd.Series:
    """Bounds of the audits, real or simulated, of one planned mechanism."""
    same = np.logical_and.reduce(
        [audits[name] == plan[name] for name in ("epsilon", "sampling_rate")]
    )
    return audits.loc[same, "epsilon_lower_bound"]


# ----------------------------------------------------------------------------------- figures


def draw_procedures(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """False rates with intervals, what is allowed and what is not; mean bounds beside them."""
    tried = tables["procedures"]
    figure, (left, right) = figures.new_figure(1, 2, height=6.2, share_y=True)
    kinds = ((True, "allowed", figures.COLOURS[0]), (False, "not allowed", "white"))
    for i, (valid, label, fill) in enumerate(kinds):
        rows = tried[tried["valid"] == valid]
        y = -rows.index.to_numpy()
        style = figures.series(i) | {"linestyle": "none", "capsize": 2}
        style |= {"label": label, "markerfacecolor": fill}
        rate = rows["n_false"] / rows["n_audits"]
        ends = [(rate - rows["rate_low"]).clip(lower=0), (rows["rate_high"] - rate).clip(lower=0)]
        left.errorbar(rate, y, xerr=ends, **style)
        half = stats.norm.ppf(0.975) * rows["standard_error"]
        right.errorbar(rows["mean_bound"], y, xerr=half, **style)
    truth = {"marker": "|", "markersize": 11, "color": figures.BLACK, "linestyle": "none"}
    right.plot(tried["epsilon"], -tried.index.to_numpy(), label="true ε", **truth)
    left.axvline(SIGNIFICANCE_LEVEL, color="grey", linewidth=1, linestyle=":", label="5 %")
    # Linear up to 10 %, where the procedures that keep their promise are, then logarithmic.
    left.set_xscale("symlog", linthresh=0.1)
    left.set_xlim(-0.008, 1.5)
    left.set_xticks([0, 0.05, 0.1, 0.3, 1], ["0", "5", "10", "30", "100"])
    left.set_xticks([], minor=True)
    left.set_yticks(-tried.index.to_numpy(), tried["procedure"])
    left.set_ylim(-len(tried) + 0.4, 0.6)
    left.set_xlabel("bounds above the truth (%)")
    right.set_xlabel("mean bound (nats)")
    handles, labels = right.get_legend_handles_labels()
    of_line, line = left.get_legend_handles_labels()
    at = line.index("5 %")
    figure.legend(
        [*handles, of_line[at]],
        [*labels, line[at]],
        loc="outside upper center",
        ncols=4,
    )
    return figure


def draw_pairs(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bounds by pairs against ε under replace-one accounting, with their ceiling."""
    plans = tables["pair_plans"]
    rates = list(plans["sampling_rate"].unique())
    figure, axes = figures.new_figure(1, len(rates), height=3.4, share_y=True)
    for ax, rate in zip(np.atleast_1d(axes), rates, strict=True):
        planned = plans[plans["sampling_rate"] == rate].sort_values("epsilon").to_dict("records")
        bounds = {plan["epsilon"]: _same_mechanism(tables["pairs"], plan) for plan in planned}
        white_box.draw_ceiling(
            ax,
            {plan["epsilon"]: _same_mechanism(tables["pair_ceiling"], plan) for plan in planned},
        )
        style = figures.series(1) | {"linestyle": "none", "marker": "_", "markersize": 9}
        x = np.repeat(list(bounds), [len(each) for each in bounds.values()])
        ax.plot(x, np.concatenate(list(bounds.values())), label="one run", **style)
        solid = figures.series(1) | {"linestyle": "-"}
        means = [each.mean() for each in bounds.values()]
        ax.plot(list(bounds), means, label="mean of runs", **solid)
        largest = max(bounds)
        ax.plot([0, largest], [0, largest], color="grey", linewidth=1, label="truth (bound = ε)")
        first = planned[0]
        ax.set_title(f"{first['n_pairs']:,} pairs, q = {rate:g}, T = {first['steps']}")
        ax.set_xlabel(f"replace-one ε (nats) at δ = {first['delta']:g}")
    figures.start_at_zero(axes)
    np.atleast_1d(axes)[0].set_ylabel("lower bound on ε (nats)")
    np.atleast_1d(axes)[0].legend(loc="upper left")
    return figure


FIGURES = {
    "procedures": Figure(
        draw_procedures,
        tables=("procedures",),
        title="How often each procedure is false",
        alternative_text=(
            "For each procedure, on the left the share of simulated audits whose bound exceeds "
            "the truth, with intervals and a line at 5 %, and on the right the mean bound beside "
            "the true ε; procedures that theory does not allow have a marker of their own."
        ),
    ),
    "pairs": Figure(
        draw_pairs,
        tables=("pairs", "pair_ceiling", "pair_plans"),
        title="A training set of fixed size",
        alternative_text=(
            "Lower bounds from pairs of canaries against the theoretical ε under replace-one "
            "accounting, one panel a sampling rate: single runs, their mean, the "
            "simulated ceiling with its band, and the line where bound and truth are equal."
        ),
    ),
}
