"""The one-run paper's numbers, and the formulas behind them by hand and by brute force."""

import math

import dp_accounting
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib import figures, one_run, sweep, tables, verification
from lib import one_run_theory as theory
from lib.errors import WorkbookError

CELLS = {
    "theory_examples": (theory.examples, theory.example_cells),
    "theory_guesses": (theory.guesses, theory.guess_cells),
    "theory_privacy": (theory.privacy, theory.privacy_cells),
    "theory_loosening": (theory.loosening, theory.loosening_cells),
    "theory_drift": (theory.drift, theory.drift_cells),
    "theory_information": (theory.information, theory.information_cells),
}
SETTING = {"n": 2000, "epsilon": 1 / 3, "delta": 1e-5, "beta": 1e-5, "failure": 0.05}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every table as a notebook would have it: swept, written and read back."""
    cache, read = tmp_path_factory.mktemp("cells"), {}
    for name, (cell, cells) in CELLS.items():
        rows = sweep.run(cell, cells(), seed=0, cache_dir=cache)
        read[name] = written_and_read(rows, name)
    return read


@pytest.fixture(scope="module")
def verdicts(made):
    return written_and_read(theory.verdicts(made), "theory_verdicts")


def written_and_read(rows, name):
    table = theory.TABLES[name]
    frame, problems = tables.read(tables.write(rows, table), tables.schema(table))
    assert problems == []
    return frame


# ----------------------------------------------------------------------------- paper's numbers


@pytest.mark.parametrize(
    ("claim", "paper", "ours", "digits", "verdict"),
    [
        ("Appendix D: bound from 75 of 100 right, δ = 0", 0.702, 0.7022, 1e-4, "agrees"),
        ("Appendix D: p-value of ε = log 3 there", 0.553, 0.5535, 1e-4, "agrees"),
        ("Appendix D: the same bound at δ = 1e-4", 0.699, 0.6995, 1e-4, "agrees"),
        ("Appendix D: the same with 900 abstentions", 0.673, 0.6730, 1e-4, "agrees"),
        (
            "randomised response at ε = 4: bound from 10,000 guesses",
            3.87,
            3.8744,
            1e-4,
            "agrees",
        ),
        ("Gaussian, σ = 1: ε at δ = 1e-5", 4.38, 4.3772, 1e-4, "agrees"),
        ("Gaussian: best bound over numbers of guesses", 2.675, 2.6759, 2e-4, "agrees"),
        (
            "Gaussian: the same, the expected number rounded down",
            2.675,
            2.6648,
            2e-4,
            "differs: ours is smaller",
        ),
        ("Gaussian: gap in δ at the best bound", 393, 393.3, 0.2, "agrees"),
        (
            "Appendix B.1: error beyond α, earlier work (Theorem B.4)",
            0.397,
            0.3968,
            1e-4,
            "agrees",
        ),
        (
            "Appendix B.1: the paper's error (Corollary B.5), Hoeffding's way",
            0.308,
            0.3107,
            1e-4,
            "differs: ours is larger",
        ),
        (
            "Appendix B.1: the paper's error (Corollary B.5), Theorem 5.2 exactly",
            0.308,
            0.2697,
            1e-4,
            "differs: ours is smaller",
        ),
        ("Appendix B.1: ε from which e^ε − 1 says nothing", 0.693, 0.6931, 1e-4, "agrees"),
        ("Appendix B.1: improvement of the leading term, at least", 2, 2.02, 1e-2, "agrees"),
        ("Appendix C: share of the bound that reveal-or-randomise reaches", 1, 1, 1e-12, "agrees"),
    ],
)
def test_printed_number(verdicts, claim, paper, ours, digits, verdict):
    row = verdicts.set_index("claim").loc[claim]
    assert row["paper"] == paper
    assert row["ours"] == pytest.approx(ours, abs=digits)
    assert row["verdict"] == verdict
    assert (abs(row["ours"] - paper) < row["tolerance"]) == (verdict == "agrees")


def test_every_verdict_is_tested(verdicts):
    (marker,) = test_printed_number.pytestmark
    assert list(verdicts["claim"]) == [row[0] for row in marker.args[1]]


def test_gaussian_at_the_paper_s_number_of_guesses(made):
    rows = made["theory_guesses"]
    rows = rows[(rows["mechanism"] == "Gaussian") & (rows["n_guesses"] == 1510)]
    assert rows["expected_correct"].to_numpy() == pytest.approx(1438.0352, abs=1e-4)
    assert dict(zip(rows["n_correct"], rows["epsilon_lower_bound"], strict=True)) == pytest.approx(
        {1438: 2.6647, 1439: 2.6759}, abs=1e-4
    )


# -------------------------------------------------------------------------------- mechanisms


def test_gaussian_delta_is_dp_accountings():
    for sigma, delta in ((1.0, 1e-5), (0.5, 1e-3), (4.0, 1e-8)):
        epsilon = dp_accounting.get_epsilon_gaussian(sigma, delta)
        assert theory.gaussian_delta(epsilon, sigma) == pytest.approx(delta, rel=1e-6)
    # At ε = 0 it is the total variation distance of N(0, 1) and N(1, 1).
    assert theory.gaussian_delta(0.0, 1.0) == pytest.approx(2 * stats.norm.cdf(0.5) - 1)


def test_expected_correct_of_two_canaries():
    """The higher score is "in" with P[in | higher]; by hand from the difference of two scores."""
    sigma = 0.8
    # Coins equal (half of the time): one guess of two is right. Coins differ: both are right if
    # the member's score is the higher, N(1, 2σ²) > 0, else none.
    by_hand = 0.5 * 1 + 0.5 * 2 * stats.norm.cdf(1 / (sigma * math.sqrt(2)))
    ours = theory.expected_correct(n_canaries=2, n_guesses=2, noise_multiplier=sigma)
    assert ours == pytest.approx(by_hand, abs=1e-9)


def test_expected_correct_is_what_simulations_give():
    m, r, sigma, n_runs = 200, 20, 1.0, 4000
    rng = np.random.default_rng(5)
    included = rng.random((n_runs, m)) < 0.5
    order = np.argsort(included - 0.5 + sigma * rng.standard_normal((n_runs, m)), axis=1)
    ordered = np.take_along_axis(included, order, axis=1)
    correct = ordered[:, -r // 2 :].sum(axis=1) + (~ordered[:, : r // 2]).sum(axis=1)
    ours = theory.expected_correct(n_canaries=m, n_guesses=r, noise_multiplier=sigma)
    assert abs(correct.mean() - ours) < 4 * correct.std() / math.sqrt(n_runs)


@pytest.mark.parametrize("n_guesses", [0, 3, 12])
def test_expected_correct_refuses(n_guesses):
    with pytest.raises(WorkbookError, match=f"n_guesses = {n_guesses}"):
        theory.expected_correct(n_canaries=10, n_guesses=n_guesses, noise_multiplier=1.0)


@pytest.mark.parametrize("n_bits", [1, 2, 3])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.0), (1.0, 0.1), (3.0, 1e-5)])
def test_reveal_or_randomise_is_exactly_private(epsilon, delta, n_bits):
    channel = theory.of_bits(theory.reveal_or_randomise(epsilon, delta), n_bits)
    assert channel.shape == (2**n_bits, 4**n_bits)
    assert channel.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert theory.smallest_delta(channel, epsilon) == pytest.approx(delta, abs=1e-12)
    assert theory.smallest_delta(channel, epsilon + 0.1) == pytest.approx(delta, abs=1e-12)
    if epsilon:
        assert theory.smallest_delta(channel, epsilon - 0.1) > delta + 1e-9


def test_smallest_delta_by_hand():
    channel = np.array([[0.7, 0.3, 0.0], [0.2, 0.3, 0.5]])
    assert theory.smallest_delta(channel, 0.0) == pytest.approx(0.5)
    # e^ε = 2: row 0 exceeds by 0.7 − 0.4; row 1 by 0.5 − 0, its largest.
    assert theory.smallest_delta(channel, math.log(2)) == pytest.approx(0.5)
    assert theory.smallest_delta(channel[:, [0, 1]], math.log(2)) == pytest.approx(0.3)


def test_smallest_delta_changes_one_bit_only():
    """One answer, "yes" with probability 0.2 for each bit that is 1; two bits apart is 0.4."""
    yes = np.array([0.0, 0.2, 0.2, 0.4])
    assert theory.smallest_delta(np.stack([yes, 1 - yes], axis=1), 0.0) == pytest.approx(0.2)


# ------------------------------------------------------------------------------- information


@pytest.mark.parametrize("n_bits", [1, 2, 3])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.2, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_reveal_or_randomise_reaches_the_bound(epsilon, delta, n_bits):
    channel = theory.of_bits(theory.reveal_or_randomise(epsilon, delta), n_bits)
    bound = theory.information_bound(epsilon, delta, n_bits=n_bits)
    assert theory.mutual_information(channel) == pytest.approx(bound, abs=1e-13)


def test_information_bound_by_hand():
    # e^ε = 3: q = 3/4, h = (1/4)·ln 4 + (3/4)·ln(4/3).
    pure = math.log(2) - (math.log(4) / 4 + 0.75 * math.log(4 / 3))
    assert theory.information_bound(math.log(3), 0.0) == pytest.approx(pure)
    mixed = 5 * (0.9 * pure + 0.1 * math.log(2))
    assert theory.information_bound(math.log(3), 0.1, n_bits=5) == pytest.approx(mixed)


def test_mutual_information_by_hand():
    assert theory.mutual_information(np.eye(4)) == pytest.approx(math.log(4))
    assert theory.mutual_information(np.full((4, 3), 1 / 3)) == pytest.approx(0.0, abs=1e-15)
    # An erasure with probability 1/4 leaves three quarters of the bit.
    erasure = np.array([[0.75, 0.0, 0.25], [0.0, 0.75, 0.25]])
    assert theory.mutual_information(erasure) == pytest.approx(0.75 * math.log(2))


def test_no_channel_exceeds_the_bound():
    """At every ε, a channel's information stays below the bound at its own smallest δ."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        n_bits = int(rng.integers(1, 4))
        shape = rng.choice([0.05, 0.3, 1.0, 10.0])
        channel = rng.dirichlet(np.full(rng.integers(2, 6), shape), size=2**n_bits)
        for epsilon in (0.0, 0.3, 1.0, 3.0):
            bound = theory.information_bound(
                epsilon, theory.smallest_delta(channel, epsilon), n_bits=n_bits
            )
            assert theory.mutual_information(channel) <= bound + 1e-12


def test_simple_bound_is_weaker_and_close_for_small_epsilon():
    for epsilon in (0.01, 0.1, 1.0, 4.0):
        bound = theory.information_bound(epsilon, 1e-3, n_bits=2)
        assert bound <= theory.simple_information_bound(epsilon, 1e-3, n_bits=2)
    assert theory.simple_information_bound(0.01, 0.0) == pytest.approx(
        theory.information_bound(0.01, 0.0), rel=1e-4
    )


@pytest.mark.parametrize("sigma", [0.2, 1.0, 5.0])
def test_gaussian_information_is_that_of_a_fine_grid(sigma):
    edges = np.linspace(-0.5 - 9 * sigma, 0.5 + 9 * sigma, 20_001)
    channel = np.diff([stats.norm.cdf(edges, mean, sigma) for mean in (-0.5, 0.5)])
    ours = theory.gaussian_information(sigma)
    assert ours == pytest.approx(theory.mutual_information(channel), abs=2e-8)


def test_gaussian_information_in_its_limits():
    assert theory.gaussian_information(50.0) == pytest.approx(1 / (8 * 50**2), rel=1e-3)
    assert theory.gaussian_information(0.05) == pytest.approx(math.log(2), abs=1e-9)


# ------------------------------------------------------------------------------------- drift


def test_prior_drift_is_the_smallest_over_c_and_d():
    c = np.geomspace(2.01e-4, 1e-1, 200_000)  # β/c = 0.05 at c = 2e-4 leaves nothing for d
    d = 1e-5 / (0.05 - 1e-5 / c)
    best = (math.expm1(1 / 3) + c + 2 * d).min()
    setting = {name: value for name, value in SETTING.items() if name != "n"}
    assert theory.prior_drift(**setting) == pytest.approx(best, abs=1e-9)


def test_theorem_drift_of_the_paper_s_setting():
    whole = theory.theorem_drift(**SETTING, whole=True)
    assert (whole["n_correct"], whole["error"]) == (1202, pytest.approx(0.202))
    counts = {"n_canaries": 2000, "n_guesses": 2000, "epsilon": 1 / 3, "delta": 1e-5}
    assert one_run.p_value(**counts, n_correct=1202) <= 0.05 - 1e-5
    assert one_run.p_value(**counts, n_correct=1201) > 0.05

    real = theory.theorem_drift(**SETTING, whole=False)
    p = one_run.p_value(**counts, n_correct=real["n_correct"])
    lost = math.exp(-(real["rounding"] ** 2) / (2 * 2000))
    assert p + lost == pytest.approx(0.05 - 1e-5)
    assert real["error"] == pytest.approx((2 * real["n_correct"] + real["rounding"]) / 2000 - 1)
    for v in range(1202, 1260):
        left = 0.05 - 1e-5 - one_run.p_value(**counts, n_correct=v)
        rounding = math.sqrt(2 * 2000 * math.log(1 / left))
        assert (2 * v + rounding) / 2000 - 1 >= real["error"] - 1e-12


def test_hoeffding_drift_spends_its_failure_probability():
    for whole, n_deviations in ((True, 1), (False, 2)):
        error = theory.hoeffding_drift(**SETTING, whole=whole)
        deviation = (error - math.tanh(1 / 6)) * 2000 / n_deviations
        spent = n_deviations * math.exp(-(deviation**2) / (2 * 2000)) + 2 * 2000 * 1e-5 + 1e-5
        assert spent == pytest.approx(0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_exact_guarantees_are_never_looser_than_closed_ones(epsilon):
    setting = SETTING | {"epsilon": epsilon}
    for whole in (True, False):
        exact = theory.theorem_drift(**setting, whole=whole)["error"]
        assert exact < theory.hoeffding_drift(**setting, whole=whole)


def test_no_guarantee_where_there_is_none():
    assert theory.hoeffding_drift(**SETTING | {"delta": 1e-4}, whole=True) is None
    assert theory.theorem_drift(**SETTING | {"n": 3, "epsilon": 3.0}, whole=True) is None
    rows = theory.drift(SETTING | {"n": 3, "epsilon": 3.0}, None, None)
    by_name = {row["guarantee"]: row["error"] for row in rows}
    assert by_name[theory.THEOREM_WHOLE] is None
    assert by_name[theory.THEOREM_REAL] is None
    assert by_name[theory.PRIOR] > 1


def test_rounding_loses_no_more_than_hoeffding_says():
    """Σ tᵢ·sᵢ exceeds its rounded version by r in a share of at most e^(−r²/2n) of trials."""
    n, n_runs, rng = 200, 20_000, np.random.default_rng(3)
    answers = rng.uniform(-1, 1, n)
    rounded = np.where(rng.random((n_runs, n)) < (1 + answers) / 2, 1, -1)
    loss = answers.sum() - rounded.sum(axis=1)
    assert abs(loss.mean()) < 4 * loss.std() / math.sqrt(n_runs)
    for r in (10, 20, 30):
        assert (loss >= r).mean() <= math.exp(-(r**2) / (2 * n))


# ------------------------------------------------------------------------------------ tables


def test_recipes_give_their_columns(made):
    for name, frame in made.items():
        for field in theory.TABLES[name].fields:
            if field.recipe:
                expected = verification.recompute(frame, field.recipe)
                assert frame[field.name].to_numpy() == pytest.approx(expected, abs=1e-9)


def test_bounds_stay_below_the_truth(made):
    guesses, information = made["theory_guesses"], made["theory_information"]
    assert (guesses["epsilon_lower_bound"] < guesses["theoretical_epsilon"]).all()
    assert (information["gaussian"] < information["bound"]).all()


def test_response_needs_more_guesses_for_more_confidence(made):
    rows = made["theory_guesses"]
    rows = rows[rows["mechanism"] == "randomised response"]
    assert (rows["n_correct"] == np.floor(rows["expected_correct"])).all()
    smooth = rows[rows["n_guesses"] != 10_000]
    for _, curve in smooth.groupby("significance"):
        assert (curve["epsilon_lower_bound"].diff().dropna() > 0).all()
    by_confidence = rows.pivot(
        index="n_guesses", columns="significance", values="epsilon_lower_bound"
    )
    assert (by_confidence.diff(axis=1).iloc[:, 1:] > 0).all(axis=None)


def test_everything_loosens_the_bound(made):
    rows = made["theory_loosening"]
    for varied, falls in (("delta", True), ("n_canaries", True), ("significance", False)):
        for _, curve in rows[rows["varied"] == varied].groupby(
            "delta" if varied != "delta" else "n_canaries"
        ):
            steps = curve["epsilon_lower_bound"].diff().dropna()
            assert (steps <= 0).all() if falls else (steps >= 0).all()
            assert (steps != 0).any()


def test_verdict_follows_the_numbers(made):
    broken = made | {"theory_examples": made["theory_examples"].assign(p_value=0.56)}
    by_claim = pd.DataFrame(theory.verdicts(broken)).set_index("claim")["verdict"]
    assert by_claim["Appendix D: p-value of ε = log 3 there"] == "differs: ours is larger"
    assert by_claim["Appendix D: bound from 75 of 100 right, δ = 0"] == "agrees"


# ----------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("name", list(theory.FIGURES))
def test_figure_is_drawn_from_its_tables_alone(made, name, tmp_path):
    figure = theory.FIGURES[name]
    with figures.style():
        drawn = figure.draw({table: made[table] for table in figure.tables})
    assert all(ax.get_xlabel() for ax in drawn.axes)
    assert all(ax.get_ylabel() for ax in drawn.axes[:1])
    assert any(ax.get_legend() for ax in drawn.axes)
    # Drawn to the last glyph: a missing one is a warning, and so an error.
    assert all(file.exists() for file in figures.save(drawn, tmp_path / name))


def test_stars_lie_at_the_paper_s_numbers(made):
    with figures.style():
        left, right = theory.draw_guesses(made).axes
        (drift,) = theory.draw_drift(made).axes
    stars = {
        name: next(line for line in ax.lines if line.get_marker() == "*").get_xydata()
        for name, ax in (("left", left), ("right", right), ("drift", drift))
    }
    assert stars["left"].tolist() == [[10_000, 3.87]]
    assert stars["right"][0, 1] == 2.675
    assert stars["drift"] == pytest.approx(np.array([[1 / 3, 0.397], [1 / 3, 0.308]]))
