"""The theory of the one-run audit, checked by machine: no training, no chance, seconds.

Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, arXiv:2305.08846. What its
Sections 5 and 7 and its Appendices B.1, C and D state in numbers is computed again:

- Appendix D's worked examples (:func:`examples`);
- what the best possible auditor of randomised response, and an auditor of the Gaussian mechanism,
  get from a number of guesses (:func:`guesses`), and how far that is from the truth in δ
  (:func:`privacy`);
- how δ, confidence and abstentions loosen a bound (:func:`loosening`);
- how far answers can drift from the truth when the data were used privately (:func:`drift`);
- how much a private release can say about random bits (:func:`information`).

Those six are cells of a sweep; each row holds what its last columns were made from.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure
from scipy import integrate, optimize, special, stats

from lib import figures, one_run
from lib.errors import WorkbookError
from lib.results import Figure
from lib.study_tables import LOWER_BOUND
from lib.tables import Field, Table

SIGNIFICANCE = 0.05
DELTA = 1e-5
RESPONSE_EPSILON = 4.0  # of the paper's randomised response
GAUSSIAN_NOISE = 1.0  # of its Gaussian example
GAUSSIAN_CANARIES = 100_000
DRIFT = {"n": 2000, "delta": 1e-5, "beta": 1e-5, "failure": 0.05}  # Appendix B.1
DRIFT_EPSILON = 1 / 3
N_BITS = 3  # enumerated: 8 inputs, 64 outputs

PRIOR = "prior transfer theorem"
HOEFFDING_REAL = "Hoeffding and δ·2n, real answers"
HOEFFDING_WHOLE = "Hoeffding and δ·2n, whole answers"
THEOREM_REAL = "Theorem 5.2, real answers"
THEOREM_WHOLE = "Theorem 5.2, whole answers"
RESPONSE, GAUSSIAN = "randomised response", "Gaussian"


# ---------------------------------------------------------------------------- the mechanisms


def gaussian_delta(epsilon: float | np.ndarray, noise_multiplier: float) -> float | np.ndarray:
    """Smallest δ at ε of one Gaussian release, σ = ``noise_multiplier``, sensitivity 1.

    Φ(1/(2σ) − εσ) − e^ε·Φ(−1/(2σ) − εσ) (Balle, Wang, arXiv:1805.06530, Theorem 8).
    """
    half, shift = 0.5 / noise_multiplier, np.multiply(epsilon, noise_multiplier)
    return special.ndtr(half - shift) - np.exp(epsilon + special.log_ndtr(-half - shift))


def expected_correct(*, n_canaries: int, n_guesses: int, noise_multiplier: float) -> float:
    """Right guesses to expect of the top and bottom scores of a Gaussian mechanism.

    A canary's score is N(±1/2, σ²), + where it is in (sensitivity 1). Given that the (k + 1)-th
    highest of m scores is t, the k above it are independent draws from above t, each "in" with
    probability P[in | score > t]; and P[score > t] then has a Beta(k + 1, m − k) distribution. The
    integral over t is a sum at 401 points. By symmetry the bottom is worth as much as the top.

    Args:
        n_canaries: m.
        n_guesses: r, even: r/2 of "in" and r/2 of "out", 0 < r ≤ m.
        noise_multiplier: σ > 0.

    Raises:
        WorkbookError: for a number of guesses that is odd or out of range.
    """
    if n_guesses % 2 or not 0 < n_guesses <= n_canaries:
        raise WorkbookError(
            f"n_guesses = {n_guesses}; allowed: an even number from 2 to n_canaries = {n_canaries}"
        )
    k, reach = n_guesses // 2, 0.5 + 40 * noise_multiplier

    def above(t, mean):
        return special.ndtr((mean - t) / noise_multiplier)

    def share_above(t):
        return (above(t, 0.5) + above(t, -0.5)) / 2

    shares = stats.beta(k + 1, n_canaries - k).ppf([1e-15, 1 - 1e-15])
    high, low = (optimize.brentq(lambda t, u=u: share_above(t) - u, -reach, reach) for u in shares)
    t = np.linspace(low, high, 401)
    share = share_above(t)
    density = np.exp(-(((t - 0.5) / noise_multiplier) ** 2) / 2)
    density += np.exp(-(((t + 0.5) / noise_multiplier) ** 2) / 2)
    log_weight = k * np.log(share) + (n_canaries - k - 1) * np.log1p(-share)
    weight = np.exp(log_weight - log_weight.max()) * density
    return n_guesses * float(np.average(above(t, 0.5) / 2 / share, weights=weight))


def reveal_or_randomise(epsilon: float, delta: float) -> np.ndarray:
    """One bit, revealed with probability δ, else by randomised response: exactly (ε, δ)-private.

    Returns:
        (2, 4) probabilities, a row for each bit: "0 for sure", "1 for sure", "perhaps 0",
        "perhaps 1".
    """
    right = (1 - delta) * special.expit(epsilon)
    wrong = (1 - delta) * special.expit(-epsilon)
    return np.array([[delta, 0, right, wrong], [0, delta, wrong, right]])


def of_bits(channel: np.ndarray, n_bits: int) -> np.ndarray:
    """A one-bit channel used on each of several bits: (2^n, outputs^n) probabilities.

    Rows are the values of the bits, read as a binary number.
    """
    return reduce(np.kron, [channel] * n_bits)


def smallest_delta(channel: np.ndarray, epsilon: float) -> float:
    """Smallest δ for which a channel from bits is (ε, δ)-private, one bit changing.

    The largest sum of max(0, P[y | x] − e^ε·P[y | x′]) over inputs x and x′ one bit apart.

    Args:
        channel: (2^n, outputs) probabilities, as :func:`of_bits` orders the rows.
        epsilon: ε ≥ 0.
    """
    inputs = np.arange(len(channel))
    flips = 2 ** np.arange(len(channel).bit_length() - 1)
    excess = channel[:, None] - np.exp(epsilon) * channel[inputs[:, None] ^ flips]
    return float(np.maximum(excess, 0).sum(axis=2).max())


# ------------------------------------------------------------------------------- information


def mutual_information(channel: np.ndarray) -> float:
    """Mutual information, in nats, of a channel's output and a uniform input.

    Args:
        channel: (inputs, outputs) probabilities of outputs, each row adding up to 1.
    """
    average = channel.mean(axis=0)
    return float(special.rel_entr(channel, average).sum(axis=1).mean())


def information_bound(epsilon: float, delta: float, *, n_bits: int = 1) -> float:
    """Most nats an (ε, δ)-private output can say about m uniform bits (arXiv:2305.08846, App. C).

    m·((1 − δ)·(ln 2 − h(e^ε/(1 + e^ε))) + δ·ln 2), with h the binary entropy in nats. Two
    distributions that are (ε, δ)-close are post-processed from :func:`reveal_or_randomise`'s, which
    therefore reaches the bound.
    """
    q = special.expit(epsilon)
    entropy = special.entr(q) + special.entr(special.expit(-epsilon))
    return n_bits * float((1 - delta) * (math.log(2) - entropy) + delta * math.log(2))


def simple_information_bound(epsilon: float, delta: float, *, n_bits: int = 1) -> float:
    """Weaker form in powers of ε, m·(ε²/8 + δ·ln 2) nats, since ln 2 − h(q) ≤ ε²/8."""
    return n_bits * (epsilon**2 / 8 + delta * math.log(2))


def gaussian_information(noise_multiplier: float) -> float:
    """Nats that one Gaussian release with sensitivity 1 says about a uniform bit.

    ln 2 − E[ln(1 + e^−L)], where L ~ N(1/(2σ²), 1/σ²) is the log-likelihood ratio of the true bit.
    Numerical integration, absolute error below 1e-10.
    """
    mean, deviation = 0.5 / noise_multiplier**2, 1 / noise_multiplier

    def uncertainty(z):
        return math.exp(-z * z / 2) * np.logaddexp(0, -mean - deviation * z)

    integral, _ = integrate.quad(uncertainty, -40, 40, points=[0], epsabs=1e-11, limit=200)
    return math.log(2) - integral / math.sqrt(2 * math.pi)


# ------------------------------------------------------------------------------------- drift


def prior_drift(*, epsilon: float, delta: float, beta: float, failure: float) -> float:
    """Error beyond α that earlier work allows (Jung et al., arXiv:1909.03577, transfer theorem).

    Answers within α of their sample value but for probability β are, if (ε, δ)-private, within
    α + e^ε − 1 + c + 2d of the truth but for probability β/c + δ/d. With the best c and d for a
    failure probability F the error is e^ε − 1 + (√β + √(2δ))²/F. It does not depend on n.
    """
    return math.expm1(epsilon) + (math.sqrt(beta) + math.sqrt(2 * delta)) ** 2 / failure


def hoeffding_drift(
    *, n: int, epsilon: float, delta: float, beta: float, failure: float, whole: bool
) -> float | None:
    """Error beyond α in closed form: Theorem 5.2 by Hoeffding's inequality, its δ-term in full.

    With probability at least 1 − e^(−λ²/2n) − 2nδ, Σ Tᵢ·Sᵢ < n·tanh(ε/2) + λ for whole answers
    Tᵢ = ±1. Real Tᵢ in [−1, 1] are rounded at random to whole ones first, which loses r with
    probability at most e^(−r²/2n). λ = r is the best split. This is in the manner of Corollaries
    5.3 and B.5 but need not be them: their exact form could not be compared.

    Args:
        n: data points.
        epsilon, delta: of the mechanism.
        beta: probability that an answer is further than α from its sample value.
        failure: allowed failure probability in all.
        whole: whether answers are ±1.

    Returns:
        The error of the mean; None where the terms in β and δ alone exceed ``failure``.
    """
    left, deviations = failure - beta - 2 * n * delta, 1 if whole else 2
    if left <= 0:
        return None
    deviation = deviations * math.sqrt(2 * math.log(deviations / left) / n)
    return math.tanh(epsilon / 2) + deviation


def theorem_drift(
    *, n: int, epsilon: float, delta: float, beta: float, failure: float, whole: bool
) -> dict | None:
    """Error beyond α by Theorem 5.2 itself, its p-value computed exactly.

    Whole answers: with v* the smallest count whose p-value is at most ``failure`` − β, fewer than
    v* of n agree, so the mean of Tᵢ·Sᵢ is below 2v*/n − 1. Real answers: (2v + r)/n − 1 with the
    best v and r for which p-value(v) + e^(−r²/2n) is at most that (:func:`hoeffding_drift` says
    what r is).

    Args:
        n, epsilon, delta, beta, whole: as in :func:`hoeffding_drift`.
        failure: allowed failure probability in all, below 1/2.

    Returns:
        ``n_correct`` (v), ``p_value`` (of v), ``rounding`` (r, None for whole answers) and
        ``error``; None if not even n of n would be refuted.
    """
    # At the mean, rounded down, half of a binomial's mass is still above.
    v = np.arange(int(n * special.expit(epsilon)), n + 1)
    p = one_run.p_value(n_canaries=n, n_guesses=n, n_correct=v, epsilon=epsilon, delta=delta)
    left = failure - beta - p
    possible = left >= 0 if whole else left > 0
    if not possible.any():
        return None
    v, p, left = v[possible], p[possible], left[possible]
    rounding = np.zeros(v.size) if whole else np.sqrt(2 * n * np.log(1 / left))
    error = (2 * v + rounding) / n - 1
    best = error.argmin()
    return {
        "n_correct": int(v[best]),
        "p_value": float(p[best]),
        "rounding": None if whole else float(rounding[best]),
        "error": float(error[best]),
    }


# ------------------------------------------------------------------------------------- cells


def examples(cell: dict, streams, dataset: None) -> list[dict]:
    """One worked example: its p-value at a hypothesis, and its bound."""
    counts = {name: cell[name] for name in ("n_canaries", "n_guesses", "n_correct", "delta")}
    return [
        cell
        | {
            "p_value": one_run.p_value(**counts, epsilon=cell["hypothesis_epsilon"]),
            "epsilon_lower_bound": one_run.epsilon_lower_bound(
                **counts, significance=cell["significance"]
            ),
        }
    ]


def guesses(cell: dict, streams, dataset: None) -> list[dict]:
    """The bound at the expected number of right guesses, over numbers of guesses.

    Randomised response: everybody is guessed, δ = 0. Gaussian: top and bottom of all canaries.
    """
    if cell["mechanism"] == RESPONSE:
        n_guesses = _response_guesses(cell["theoretical_epsilon"])
        n_canaries = n_guesses
        expected = n_guesses * special.expit(cell["theoretical_epsilon"])
    else:
        n_canaries = cell["n_canaries"]
        n_guesses = _gaussian_guesses(n_canaries)
        expected = np.array(
            [
                expected_correct(
                    n_canaries=n_canaries,
                    n_guesses=int(r),
                    noise_multiplier=cell["noise_multiplier"],
                )
                for r in n_guesses
            ]
        )
    rounded = {"down": np.floor, "up": np.ceil}[cell["rounded"]](expected).astype(int)
    bounds = one_run.epsilon_lower_bound(
        n_canaries=n_canaries,
        n_guesses=n_guesses,
        n_correct=rounded,
        delta=cell["delta"],
        significance=cell["significance"],
    )
    columns = {
        "n_canaries": np.broadcast_to(n_canaries, n_guesses.shape),
        "n_guesses": n_guesses,
        "expected_correct": expected,
        "n_correct": rounded,
        "epsilon_lower_bound": bounds,
    }
    return _rows(cell, columns)


def privacy(cell: dict, streams, dataset: None) -> list[dict]:
    """δ against ε of one Gaussian release."""
    epsilon = np.linspace(0, 6, 121)
    delta = gaussian_delta(epsilon, cell["noise_multiplier"])
    return _rows(cell, {"epsilon": epsilon, "delta": delta})


def loosening(cell: dict, streams, dataset: None) -> list[dict]:
    """The bound while one of δ, significance and the number of canaries varies."""
    values = {
        "delta": np.geomspace(1e-9, 1e-2, 57),
        "significance": np.geomspace(1e-8, 0.5, 57),
        "n_canaries": np.geomspace(cell["n_guesses"], 1e3 * cell["n_guesses"], 57).round(),
    }[cell["varied"]]
    if cell["varied"] == "n_canaries":
        values = values.astype(int)
    varied = cell | {cell["varied"]: values}
    arguments = ("n_canaries", "n_guesses", "n_correct", "delta", "significance")
    bounds = one_run.epsilon_lower_bound(**{name: varied[name] for name in arguments})
    return _rows(cell, {cell["varied"]: values, "epsilon_lower_bound": bounds})


def drift(cell: dict, streams, dataset: None) -> list[dict]:
    """Every guarantee on the drift of private answers at one ε; None where there is none."""
    setting = {name: cell[name] for name in ("n", "epsilon", "delta", "beta", "failure")}
    nothing = {"n_correct": None, "p_value": None, "rounding": None, "error": None}
    prior = prior_drift(**{name: value for name, value in setting.items() if name != "n"})
    found = {
        PRIOR: {"error": prior},
        HOEFFDING_REAL: {"error": hoeffding_drift(**setting, whole=False)},
        HOEFFDING_WHOLE: {"error": hoeffding_drift(**setting, whole=True)},
        THEOREM_REAL: theorem_drift(**setting, whole=False) or {},
        THEOREM_WHOLE: theorem_drift(**setting, whole=True) or {},
    }
    return [cell | {"guarantee": name} | nothing | row for name, row in found.items()]


def information(cell: dict, streams, dataset: None) -> list[dict]:
    """Information about a bit at one (ε, δ): the bound, what reaches it, and the Gaussian's."""
    import dp_accounting

    epsilon, delta, n_bits = cell["epsilon"], cell["delta"], cell["n_bits"]
    sigma = float(dp_accounting.get_sigma_gaussian(epsilon, delta))
    enumerated = mutual_information(of_bits(reveal_or_randomise(epsilon, delta), n_bits))
    return [
        cell
        | {
            "bound": information_bound(epsilon, delta),
            "simple_bound": simple_information_bound(epsilon, delta),
            "reveal_or_randomise": enumerated / n_bits,
            "noise_multiplier": sigma,
            "gaussian": gaussian_information(sigma),
        }
    ]


def _rows(cell: dict, columns: dict[str, np.ndarray]) -> list[dict]:
    values = (column.tolist() for column in columns.values())
    return [cell | dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _response_guesses(epsilon: float) -> np.ndarray:
    """Numbers of guesses with just under a whole number of wrong ones to expect.

    At others, rounding the right ones down costs up to a whole guess: teeth that say nothing.
    """
    n_wrong = np.unique(np.geomspace(1, 20_000, 90).astype(int))
    return np.unique([10_000, *(n_wrong * (1 + np.exp(epsilon))).astype(int)])


def _gaussian_guesses(n_canaries: int) -> np.ndarray:
    """Even numbers of guesses up to all canaries, the paper's best neighbourhood closely."""
    coarse = 2 * np.geomspace(5, n_canaries // 2, 150).astype(int)
    return np.unique([*coarse, *range(1480, 1562, 2)])


# ------------------------------------------------------------------------- the paper's settings


def example_cells(session=None) -> list[dict]:
    """Appendix D's three examples, each also held against ε = log 3."""
    shared = {"significance": SIGNIFICANCE, "hypothesis_epsilon": math.log(3)}
    counts = [(100, 0.0), (100, 1e-4), (1000, 1e-4)]
    return [
        {"n_canaries": m, "n_guesses": 100, "n_correct": 75, "delta": delta} | shared
        for m, delta in counts
    ]


def guess_cells(session=None) -> list[dict]:
    """Randomised response at four confidences; the Gaussian with counts rounded both ways."""
    import dp_accounting

    response = {
        "mechanism": RESPONSE,
        "theoretical_epsilon": RESPONSE_EPSILON,
        "noise_multiplier": None,
        "n_canaries": None,
        "delta": 0.0,
        "rounded": "down",
    }
    gaussian = {
        "mechanism": GAUSSIAN,
        "theoretical_epsilon": float(dp_accounting.get_epsilon_gaussian(GAUSSIAN_NOISE, DELTA)),
        "noise_multiplier": GAUSSIAN_NOISE,
        "n_canaries": GAUSSIAN_CANARIES,
        "delta": DELTA,
        "significance": SIGNIFICANCE,
    }
    return [
        *(response | {"significance": significance} for significance in (0.1, 0.05, 0.01, 0.001)),
        *(gaussian | {"rounded": rounded} for rounded in ("down", "up")),
    ]


def privacy_cells(session=None) -> list[dict]:
    """The Gaussian example's mechanism."""
    return [{"noise_multiplier": GAUSSIAN_NOISE}]


def loosening_cells(session=None) -> list[dict]:
    """1,000 guesses with the 982 right that randomised response at ε = 4 leads to expect."""
    base = {
        "n_guesses": 1000,
        "n_correct": 982,
        "n_canaries": 1000,
        "delta": DELTA,
        "significance": SIGNIFICANCE,
    }
    changes = {
        "delta": [{"n_canaries": m} for m in (1000, 10_000, 100_000)],
        "significance": [{"delta": delta} for delta in (0.0, 1e-5, 1e-4)],
        "n_canaries": [{"delta": delta} for delta in (1e-6, 1e-5, 1e-4)],
    }
    return [
        base | {"varied": varied, varied: None} | change
        for varied, several in changes.items()
        for change in several
    ]


def drift_cells(session=None) -> list[dict]:
    """Appendix B.1's setting, and other ε around its own."""
    epsilons = sorted({DRIFT_EPSILON, *np.linspace(0.02, 2, 23).tolist()})
    return [DRIFT | {"epsilon": epsilon} for epsilon in epsilons]


def information_cells(session=None) -> list[dict]:
    """ε from 0.05 to 8 at two δ."""
    return [
        {"epsilon": epsilon, "delta": delta, "n_bits": N_BITS}
        for delta in (DELTA, 1e-2)
        for epsilon in np.geomspace(0.05, 8, 31).tolist()
    ]


# ------------------------------------------------------------------------------------ tables

_COUNT_FIELDS = (
    Field("n_canaries", "integer", "", "canaries m", minimum=1),
    Field("n_guesses", "integer", "", "guesses r", minimum=0),
    Field("n_correct", "integer", "", "guesses v taken to be right", minimum=0),
    Field("delta", "number", "", "δ of the claim that is tested", minimum=0, maximum=1),
    Field("significance", "number", "", "1 − confidence", minimum=0, maximum=0.5),
    LOWER_BOUND,
)
_EPSILON = Field("epsilon", "number", "nats", "ε of the mechanism", minimum=0)
_DELTA = Field("delta", "number", "", "δ of the mechanism", minimum=0, maximum=1)
_NOISE = Field("noise_multiplier", "number", "sensitivities", "σ of the Gaussian", minimum=0)

TABLES = {
    "theory_examples": Table(
        fields=(
            *_COUNT_FIELDS,
            Field("hypothesis_epsilon", "number", "nats", "ε that is held against the counts"),
            Field(
                "p_value",
                "number",
                "",
                "p-value of that ε (Theorem 5.2)",
                minimum=0,
                maximum=1,
                recipe={
                    "function": "one_run.p_value",
                    "columns": {
                        "n_canaries": "n_canaries",
                        "n_guesses": "n_guesses",
                        "n_correct": "n_correct",
                        "epsilon": "hypothesis_epsilon",
                        "delta": "delta",
                    },
                },
            ),
        ),
        key=("n_canaries", "delta"),
        meaning="one worked example of Appendix D",
    ),
    "theory_guesses": Table(
        fields=(
            Field("mechanism", "string", "", "randomised response or Gaussian"),
            Field("theoretical_epsilon", "number", "nats", "ε of the mechanism at δ", minimum=0),
            Field(
                "noise_multiplier",
                "number",
                "sensitivities",
                "σ of the Gaussian",
                required=False,
                minimum=0,
            ),
            Field("expected_correct", "number", "", "right guesses to expect", minimum=0),
            Field("rounded", "string", "", "how that became the count: down or up"),
            *_COUNT_FIELDS,
        ),
        key=("mechanism", "rounded", "significance", "n_guesses"),
        meaning="the bound at the expected count of right guesses, for one number of guesses",
        claims=({"lower_bound": "epsilon_lower_bound", "truth": "theoretical_epsilon"},),
    ),
    "theory_privacy": Table(
        fields=(_NOISE, _EPSILON, _DELTA),
        key=("noise_multiplier", "epsilon"),
        meaning="the smallest δ of one Gaussian release at one ε",
    ),
    "theory_loosening": Table(
        fields=(
            Field("varied", "string", "", "what varies: delta, significance or n_canaries"),
            *_COUNT_FIELDS,
        ),
        key=("varied", "n_canaries", "delta", "significance"),
        meaning="the bound from the same guesses in one setting",
    ),
    "theory_drift": Table(
        fields=(
            _EPSILON,
            _DELTA,
            Field("n", "integer", "", "data points", minimum=1),
            Field("beta", "number", "", "chance of a sample error above α", minimum=0, maximum=1),
            Field("failure", "number", "", "allowed failure probability", minimum=0, maximum=1),
            Field("guarantee", "string", "", "where the error comes from"),
            Field("n_correct", "integer", "", "v of Theorem 5.2", required=False, minimum=0),
            Field("p_value", "number", "", "p-value of v", required=False, minimum=0, maximum=1),
            Field("rounding", "number", "", "r, what rounding may lose", required=False, minimum=0),
            Field(
                "error",
                "number",
                "",
                "guaranteed error of the mean beyond α; empty where there is none",
                required=False,
                minimum=0,
            ),
        ),
        key=("epsilon", "guarantee"),
        meaning="one guarantee on answers of an (ε, δ)-private analyst (Appendix B.1)",
    ),
    "theory_information": Table(
        fields=(
            _EPSILON,
            _DELTA,
            Field("n_bits", "integer", "", "bits enumerated", minimum=1),
            Field("bound", "number", "nats a bit", "the bound of Appendix C", minimum=0),
            Field("simple_bound", "number", "nats a bit", "ε²/8 + δ·ln 2", minimum=0),
            Field(
                "reveal_or_randomise",
                "number",
                "nats a bit",
                "information of revealing with probability δ, else randomised response",
                minimum=0,
            ),
            _NOISE,
            Field("gaussian", "number", "nats a bit", "information of that Gaussian", minimum=0),
        ),
        key=("epsilon", "delta"),
        meaning="information about uniform bits in an (ε, δ)-private output",
        claims=({"attack": "gaussian", "bound": "bound"},),
    ),
    "theory_verdicts": Table(
        fields=(
            Field("claim", "string", "", "what is compared"),
            Field("paper", "number", "", "what the paper prints"),
            Field("ours", "number", "", "what is computed here"),
            Field("tolerance", "number", "", "smallest difference that counts", minimum=0),
            Field("verdict", "string", "", "agrees, or how it differs"),
            Field("reason", "string", "", "how it was computed"),
        ),
        key=("claim",),
        meaning="one printed number of the paper against ours",
        derived="one_run_theory.verdicts",
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Each number the paper prints, beside ours; the rows of table ``theory_verdicts``.

    The tolerance is one unit of the last digit printed, since a printed bound may be rounded or
    cut. A number agrees when it is closer than that.
    """
    return [
        *_example_verdicts(tables["theory_examples"]),
        *_guess_verdicts(tables["theory_guesses"]),
        *_drift_verdicts(tables["theory_drift"]),
        _information_verdict(tables["theory_information"]),
    ]


def _verdict(claim: str, paper: float, ours: float, tolerance: float, reason: str) -> dict:
    if abs(ours - paper) < tolerance:
        verdict = "agrees"
    else:
        verdict = "differs: ours is " + ("larger" if ours > paper else "smaller")
    return {
        "claim": claim,
        "paper": paper,
        "ours": float(ours),
        "tolerance": tolerance,
        "verdict": verdict,
        "reason": reason,
    }


def _example_verdicts(examples: pd.DataFrame) -> list[dict]:
    plain, delta, abstaining = (examples.iloc[i] for i in range(3))
    return [
        _verdict(
            "Appendix D: bound from 75 of 100 right, δ = 0",
            0.702,
            plain["epsilon_lower_bound"],
            0.001,
            "Theorem 5.2, 95 % confidence",
        ),
        _verdict(
            "Appendix D: p-value of ε = log 3 there",
            0.553,
            plain["p_value"],
            0.001,
            "Theorem 5.2",
        ),
        _verdict(
            "Appendix D: the same bound at δ = 1e-4",
            0.699,
            delta["epsilon_lower_bound"],
            0.001,
            "Theorem 5.2, 95 % confidence",
        ),
        _verdict(
            "Appendix D: the same with 900 abstentions",
            0.673,
            abstaining["epsilon_lower_bound"],
            0.001,
            "Theorem 5.2, 95 % confidence; all 1,000 canaries count in the term in δ",
        ),
    ]


def _guess_verdicts(guesses: pd.DataFrame) -> list[dict]:
    response = guesses[
        (guesses["mechanism"] == RESPONSE)
        & (guesses["significance"] == SIGNIFICANCE)
        & (guesses["n_guesses"] == 10_000)
    ].iloc[0]
    down, up = (best_guesses(guesses, rounded) for rounded in ("down", "up"))
    gap = gaussian_delta(up["epsilon_lower_bound"], up["noise_multiplier"]) / up["delta"]
    return [
        _verdict(
            "randomised response at ε = 4: bound from 10,000 guesses",
            3.87,
            response["epsilon_lower_bound"],
            0.01,
            f"{response['n_correct']:,} right, the expected number rounded down",
        ),
        _verdict(
            "Gaussian, σ = 1: ε at δ = 1e-5",
            4.38,
            up["theoretical_epsilon"],
            0.01,
            "closed form (arXiv:1805.06530)",
        ),
        _verdict(
            "Gaussian: best bound over numbers of guesses",
            2.675,
            up["epsilon_lower_bound"],
            0.001,
            f"{up['n_correct']:,} of {up['n_guesses']:,}: {up['expected_correct']:.2f} expected, "
            "rounded up",
        ),
        _verdict(
            "Gaussian: the same, the expected number rounded down",
            2.675,
            down["epsilon_lower_bound"],
            0.001,
            f"{down['n_correct']:,} of {down['n_guesses']:,}: {down['expected_correct']:.2f} "
            "expected; the gap of 393 in δ belongs to the other rounding",
        ),
        _verdict(
            "Gaussian: gap in δ at the best bound",
            393,
            gap,
            1,
            f"the mechanism's δ at ε = {up['epsilon_lower_bound']:.4f}, over 1e-5",
        ),
    ]


def _drift_verdicts(drift: pd.DataFrame) -> list[dict]:
    at_paper = drift[drift["epsilon"] == DRIFT_EPSILON].set_index("guarantee")
    prior = drift[drift["guarantee"] == PRIOR]
    term = prior["error"].to_numpy() - _allowance()
    # ε is linear in log(1 + term), which a straight line between the table's points relies on.
    vacuous = float(np.interp(math.log(2), np.log1p(term), prior["epsilon"]))
    smallest = prior.iloc[0]["epsilon"]
    whole = at_paper.loc[THEOREM_WHOLE]
    return [
        _verdict(
            "Appendix B.1: error beyond α, earlier work (Theorem B.4)",
            0.397,
            at_paper.loc[PRIOR, "error"],
            0.001,
            "Jung et al., arXiv:1909.03577, with the best c and d",
        ),
        _verdict(
            "Appendix B.1: the paper's error (Corollary B.5), Hoeffding's way",
            0.308,
            at_paper.loc[HOEFFDING_REAL, "error"],
            0.001,
            "our closed form, Hoeffding twice and 2nδ in full; it need not be the corollary's",
        ),
        _verdict(
            "Appendix B.1: the paper's error (Corollary B.5), Theorem 5.2 exactly",
            0.308,
            at_paper.loc[THEOREM_REAL, "error"],
            0.001,
            f"exact p-value and randomised rounding; {whole['error']:.3f} for whole answers "
            f"(v* = {int(whole['n_correct']):,} of 2,000), which need no rounding",
        ),
        _verdict(
            "Appendix B.1: ε from which e^ε − 1 says nothing",
            0.693,
            vacuous,
            0.001,
            "log 2; interpolated between the ε of the table",
        ),
        _verdict(
            "Appendix B.1: improvement of the leading term, at least",
            2,
            math.expm1(smallest) / math.tanh(smallest / 2),
            0.1,
            f"e^ε + 1 at the smallest ε here, {smallest:g}",
        ),
    ]


def _allowance() -> float:
    """The part of :func:`prior_drift` that is not e^ε − 1, in Appendix B.1's setting."""
    setting = {name: DRIFT[name] for name in ("delta", "beta", "failure")}
    return prior_drift(epsilon=0.0, **setting)


def _information_verdict(information: pd.DataFrame) -> dict:
    share = information["reveal_or_randomise"] / information["bound"]
    furthest = share[(share - 1).abs().idxmax()]
    gaussian = (information["gaussian"] / information["bound"]).max()
    return _verdict(
        "Appendix C: share of the bound that reveal-or-randomise reaches",
        1,
        furthest,
        1e-9,
        f"all inputs and outputs of {N_BITS} bits enumerated, the furthest of {len(share)} (ε, δ); "
        f"the Gaussian reaches at most {gaussian:.2f}",
    )


def best_guesses(guesses: pd.DataFrame, rounded: str) -> pd.Series:
    """The Gaussian's row with the largest bound, expected counts rounded "down" or "up"."""
    rows = guesses[(guesses["mechanism"] == GAUSSIAN) & (guesses["rounded"] == rounded)]
    return rows.loc[rows["epsilon_lower_bound"].idxmax()]


# ----------------------------------------------------------------------------------- figures


def draw_guesses(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bound against number of guesses: randomised response, and the Gaussian example."""
    table = tables["theory_guesses"]
    figure, (left, right) = figures.new_figure(1, 2, height=3.2, share_y=True)
    response = table[table["mechanism"] == RESPONSE]
    for i, (significance, rows) in enumerate(response.groupby("significance", sort=False)):
        left.plot(
            rows["n_guesses"],
            rows["epsilon_lower_bound"],
            label=f"{1 - significance:.4g}",
            **figures.series(i) | {"marker": ""},
        )
    figures.paper_value(left, [10_000], [3.87])
    left.set_title("randomised response, δ = 0")
    left.set_xlabel("guesses (all canaries)")
    left.set_ylabel("lower bound on ε (nats)")
    left.legend(loc="lower right", title="confidence", alignment="left")

    gaussian = table[table["mechanism"] == GAUSSIAN]
    low = gaussian[gaussian["rounded"] == "down"]
    right.plot(
        low["n_guesses"],
        low["epsilon_lower_bound"],
        label="0.95",
        **figures.series(1) | {"marker": ""},
    )
    best = best_guesses(table, "up")
    figures.paper_value(right, [best["n_guesses"]], [2.675], label="paper, best")
    right.set_title(f"Gaussian, σ = 1, m = {best['n_canaries']:,}, δ = {best['delta']:g}")
    right.set_xlabel("guesses (half the top, half the bottom)")
    right.legend(loc="upper left", bbox_to_anchor=(0, 0.86), title="confidence", alignment="left")
    for ax, rows in ((left, response), (right, gaussian)):
        truth = rows["theoretical_epsilon"].iloc[0]
        ax.axhline(truth, color="grey", linewidth=1)
        ax.annotate(
            f"truth, {truth:.3g}",
            (1, truth),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color="#555555",
        )
        ax.set_xscale("log")
    left.set_ylim(0, 5)
    return figure


def draw_gap(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """The Gaussian's δ against ε, and where the best bound leaves it."""
    curve, best = tables["theory_privacy"], best_guesses(tables["theory_guesses"], "up")
    bound, delta, truth = (
        best[name] for name in ("epsilon_lower_bound", "delta", "theoretical_epsilon")
    )
    reached = gaussian_delta(bound, best["noise_multiplier"])
    figure, ax = figures.new_figure(height=3.0)
    ax.plot(curve["epsilon"], curve["delta"], color=figures.COLOURS[0], label="Gaussian, σ = 1")
    ax.plot(
        [truth, bound, bound],
        [delta, delta, reached],
        color=figures.COLOURS[1],
        linestyle="--",
        label="what the audit leaves open",
    )
    ax.plot(truth, delta, "o", color="black", label=f"truth: ε = {truth:.2f} at δ = {delta:g}")
    ax.plot(bound, delta, "s", color="black", label=f"audit: ε ≥ {bound:.3f} at δ = {delta:g}")
    ax.annotate(
        f"× {reached / delta:.0f} in δ",
        (bound, math.sqrt(reached * delta)),
        xytext=(-6, 0),
        textcoords="offset points",
        ha="right",
        va="center",
    )
    ax.set_yscale("log")
    ax.set_ylim(1e-8, 1)
    ax.set_xlabel("ε (nats)")
    ax.set_ylabel("δ")
    ax.legend(loc="upper right")
    return figure


def draw_loosening(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """The same guesses under other δ, confidences and numbers of abstentions."""
    table = tables["theory_loosening"]
    panels = (
        ("delta", "δ", "n_canaries", "canaries", "{:,}", "confidence 95 %"),
        ("significance", "1 − confidence", "delta", "δ", "{:g}", "no abstentions"),
        ("n_canaries", "canaries, 1,000 of them guessed", "delta", "δ", "{:g}", "confidence 95 %"),
    )
    figure, axes = figures.new_figure(1, 3, height=2.9, share_y=True)
    for ax, (varied, label, fixed, key, form, title) in zip(axes, panels, strict=True):
        curves = table[table["varied"] == varied].groupby(fixed, sort=False)
        for i, (value, rows) in enumerate(curves):
            ax.plot(
                rows[varied],
                rows["epsilon_lower_bound"],
                label=form.format(value),
                **figures.series(i) | {"marker": ""},
            )
        ax.axhline(RESPONSE_EPSILON, color="grey", linewidth=1)
        ax.set_xscale("log")
        ax.set_xlabel(label)
        ax.set_title(title)
        ax.legend(loc="lower left", title=key, alignment="left")
    axes[0].annotate(
        "truth (982 of 1,000 right)",
        (0, RESPONSE_EPSILON),
        xycoords=("axes fraction", "data"),
        xytext=(2, 2),
        textcoords="offset points",
        color="#555555",
    )
    axes[0].set_ylim(0, 4.5)
    axes[0].set_ylabel("lower bound on ε (nats)")
    return figure


def draw_drift(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Guaranteed error against ε, with the paper's two numbers."""
    table = tables["theory_drift"]
    first = table.iloc[0]
    figure, ax = figures.new_figure(height=3.4)
    ax.set_title(
        f"n = {first['n']:,}, β = δ = {first['delta']:g}, failure probability {first['failure']:g}"
    )
    for i, name in enumerate((PRIOR, HOEFFDING_REAL, THEOREM_REAL, THEOREM_WHOLE)):
        rows = table[table["guarantee"] == name]
        ax.plot(rows["epsilon"], rows["error"], label=name, **figures.series(i) | {"marker": ""})
    epsilon = table["epsilon"].unique()
    ax.plot(epsilon, np.tanh(epsilon / 2), color="grey", linewidth=1, label="(e^ε − 1)/(e^ε + 1)")
    figures.paper_value(ax, [DRIFT_EPSILON] * 2, [0.397, 0.308], label="paper: 0.397 and 0.308")
    ax.axhline(1, color="black", linewidth=1)
    ax.annotate(
        "above: says nothing",
        (1, 1),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
    )
    ax.set_ylim(0, 1.1)
    ax.set_xlim(0, 2)
    ax.set_xlabel("ε (nats)")
    ax.set_ylabel("error of the mean beyond α")
    ax.legend(loc="lower right")
    return figure


def draw_information(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Information about one bit against ε, a panel for each δ."""
    table = tables["theory_information"]
    figure, axes = figures.new_figure(1, 2, height=3.2, share_x=True, share_y=True)
    curves = {
        "simple_bound": ("ε²/8 + δ ln 2", figures.series(3) | {"marker": ""}),
        "bound": ("bound", figures.series(0) | {"marker": ""}),
        "reveal_or_randomise": (
            "reveal or randomise, enumerated",
            figures.series(0) | {"linestyle": "none", "markerfacecolor": "none"},
        ),
        "gaussian": ("Gaussian", figures.series(1) | {"marker": ""}),
    }
    for ax, (delta, rows) in zip(axes, table.groupby("delta", sort=False), strict=True):
        for name, (label, style) in curves.items():
            ax.plot(rows["epsilon"], rows[name], label=label, **style)
        ax.axhline(math.log(2), color="grey", linewidth=1)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"δ = {delta:g}")
        ax.set_xlabel("ε (nats)")
    axes[0].annotate(
        "all of the bit, ln 2",
        (0, math.log(2)),
        xycoords=("axes fraction", "data"),
        xytext=(2, 2),
        textcoords="offset points",
        color="#555555",
    )
    axes[0].set_ylim(top=4)
    axes[0].set_ylabel("information about a bit (nats)")
    axes[1].legend(loc="lower right")
    return figure


FIGURES = {
    "theory_guesses": Figure(
        draw_guesses,
        tables=("theory_guesses",),
        title="What a number of guesses is worth",
        alternative_text=(
            "Lower bound on ε against the number of guesses. Left, randomised response at ε = 4, "
            "a curve for each confidence, all rising to the truth. Right, the Gaussian mechanism, "
            "one curve that rises to about 2.67 near 1,500 guesses and falls again, far below the "
            "truth of 4.38. The paper's values are stars on the curves."
        ),
    ),
    "theory_gap": Figure(
        draw_gap,
        tables=("theory_privacy", "theory_guesses"),
        title="What the best bound leaves open",
        alternative_text=(
            "δ against ε of the Gaussian mechanism, on a logarithmic axis, with the point that the "
            "audit shows far below it: the distance is 1.70 in ε, or a factor of 393 in δ."
        ),
    ),
    "theory_loosening": Figure(
        draw_loosening,
        tables=("theory_loosening",),
        title="What δ, confidence and abstentions cost",
        alternative_text=(
            "Lower bound on ε from the same guesses in three panels: against δ, against one less "
            "the confidence, against the number of canaries. Each curve is flat at first, then "
            "falls steeply to 0 where canaries times δ nears one less the confidence."
        ),
    ),
    "theory_drift": Figure(
        draw_drift,
        tables=("theory_drift",),
        title="How far private answers can drift from the truth",
        alternative_text=(
            "Guaranteed error against ε: earlier work's bound rises above 1 at ε = log 2, three "
            "forms of this paper's stay below 1; the paper's two numbers are stars at ε = 1/3, one "
            "on the earlier bound, one between two of the others."
        ),
    ),
    "theory_information": Figure(
        draw_information,
        tables=("theory_information",),
        title="How much a private release says about a bit",
        alternative_text=(
            "Information about one bit against ε on logarithmic axes, a panel for each of two δ: "
            "the bound, circles of the enumerated mechanism on it, the Gaussian well below, and a "
            "simpler bound that leaves the others behind above ε = 1."
        ),
    ),
}
