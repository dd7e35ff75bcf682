"""Study 03, membership: training sets, packing, guesses and intervals from tables alone."""

import numpy as np
import pandas as pd
import pytest

from lib import accounting, data, figures, intervals, membership, sweep
from lib import condensation_epsilon as epsilon
from lib import condensation_membership as study
from lib import condensation_models as networks
from lib import condensation_schemes as schemes
from lib.errors import WorkbookError

N = 1000


@pytest.fixture(scope="module")
def digits():
    return data.load("mnist5k")


def drawn(digits, pair=0, side=0, seed=0):
    labels = digits.train_labels[schemes.universe(digits, N)]
    cell = {"n_universe": N, "pair": pair, "side": side}
    return schemes.draw(cell, seed, labels), labels


def made_up_tables(digits, n_pairs, logits):
    """Tables as the cells would fill them, with given logits for one scheme."""
    cells = [{"n_universe": N, "pair": k, "side": s} for k in range(n_pairs) for s in range(2)]
    sets = [
        row for cell in cells for row in networks.training_set(cell, sweep.Streams(0, cell), digits)
    ]
    rows = networks.example(cells[0], sweep.Streams(0, cells[0]), digits)
    models = [
        {"scheme": schemes.SUBSET, "pair": cell["pair"], "side": cell["side"]}
        | {"test_accuracy": 0.5 + 0.01 * (i % 3), "logits": networks.pack_numbers(values)}
        for i, (cell, values) in enumerate(zip(cells, logits, strict=True))
    ]
    mechanisms = pd.DataFrame(columns=["scheme", "theoretical_epsilon", "delta", "delta_at_zero"])
    return {
        "training_sets": pd.DataFrame(sets),
        "examples": pd.DataFrame(rows),
        "models": pd.DataFrame(models),
        "mechanisms": mechanisms,
    }


def completed(tables):
    tables["attacks"] = pd.DataFrame(study.attack_rows(tables))
    tables["schemes"] = pd.DataFrame(study.scheme_rows(tables))
    return tables


def test_training_sets_are_complementary_and_one_per_cent_is_the_subset(digits):
    (one, labels), (other, _) = drawn(digits), drawn(digits, side=1)
    assert (one["members"] == ~other["members"]).all()
    assert not (one["subset"] & ~one["members"]).any()
    assert np.bincount(labels[one["subset"]]).tolist() == [1] * 10
    for where, pool in (
        (membership.TRAINING_SET, one["members"]),
        (membership.OUTSIDE, ~one["members"]),
    ):
        compared = one[where] & ~one["subset"]
        assert np.bincount(labels[compared]).tolist() == [1] * 10
        assert not (compared & ~pool).any()


def test_training_sets_are_the_same_for_every_scheme_and_differ_between_pairs(digits):
    first, again = drawn(digits)[0], drawn(digits)[0]
    other, reseeded = drawn(digits, pair=1)[0], drawn(digits, seed=1)[0]
    for name in first:
        assert (first[name] == again[name]).all()
        assert (first[name] != other[name]).any()
        assert (first[name] != reseeded[name]).any()


@pytest.mark.parametrize("n_universe", [0, 999, 1500, 5000])
def test_a_universe_that_does_not_fit_is_refused(digits, n_universe):
    with pytest.raises(WorkbookError, match=rf"n_universe = {n_universe}; allowed: multiples of"):
        schemes.universe(digits, n_universe)


def test_packed_numbers_come_back():
    rng = np.random.default_rng(0)
    flags, values = rng.random(1001) < 0.3, 10 * rng.standard_normal(1001)
    assert (networks.unpack(networks.pack(flags), 1001) == flags).all()
    back = networks.unpack_numbers(networks.pack_numbers(values))
    np.testing.assert_allclose(back, values, rtol=2**-11, atol=1e-6)
    text = networks.pack(flags) + networks.pack_numbers(values)
    assert not set(text) & set('",\r\n ')


@pytest.mark.parametrize("n_pairs", [4, 8])
def test_pure_noise_shows_nothing_through_the_whole_path(digits, n_pairs):
    """8 and 16 models: mean over 12 universes within four standard errors of 0, and AUC of ½."""
    found, areas = [], []
    for seed in range(12):
        noise = np.random.default_rng(seed).standard_normal((2 * n_pairs, N))
        tables = completed(made_up_tables(digits, n_pairs, noise))
        row = tables["schemes"].query("protocol == @study.UNIVERSE").iloc[0]
        found.append(row["advantage"])
        attacks = tables["attacks"].query("protocol == @study.UNIVERSE and chosen")
        areas.append(attacks["auc"].mean())
    for values, expected in ((found, 0.0), (areas, 0.5)):
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - expected) <= 4 * error + 1e-4


@pytest.fixture(scope="module")
def exposed(digits):
    """A subset that is seen perfectly: the strongest attack there can be on it."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((8, N))
    for k, values in enumerate(logits):
        values[drawn(digits, pair=k // 2, side=k % 2)[0]["subset"]] += 30
    tables = completed(made_up_tables(digits, 4, logits))
    tables["roc"] = pd.DataFrame(study.roc_rows(tables))
    plan = {"n_positive": 10, "n_negative": 10, "delta": 1e-5, "significance": 0.05}
    tables["claim_plan"] = pd.DataFrame([plan | {"exposed_share": 0.05}])
    tables["claims"] = pd.DataFrame(epsilon.claim_rows(tables))
    tables["exposed"] = pd.DataFrame(epsilon.exposed_rows(tables))
    return tables


def test_a_perfect_attack_reaches_the_cap_and_the_wrong_protocol_says_one(exposed):
    rows = exposed["schemes"].set_index("protocol")
    right = rows.loc[study.UNIVERSE]
    assert right["cap"] == pytest.approx(0.02, abs=0.001)
    assert right["advantage_low"] <= right["cap"]
    # Eight models of about 500 members and others: a standard error of 0.011.
    assert right["advantage"] == pytest.approx(right["cap"], abs=0.045)
    for protocol in study.SAMPLES:
        assert rows.loc[protocol, "advantage"] == pytest.approx(1.0, abs=0.01)
    verdicts = [study._wrong_verdict(exposed, *pair) for pair in study._wrong_pairs()[:2]]
    assert [row["verdict"] for row in verdicts] == [
        "differs: more is given away here",
        "more than 5 times the protocol's",
    ]
    # Four pairs have room for twice the cap.
    assert study._cap_verdict(exposed)["verdict"] == "not distinguishable"


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.018, 0.015, 0.021), "as allowed"),
        ((0.030, 0.021, 0.039), "above the cap"),
        ((0.018, -0.01, 0.046), "not distinguishable"),
    ],
)
def test_a_cap_is_broken_only_by_a_whole_interval(interval, words):
    assert study._cap_words(interval, 0.02) == words


def test_pairs_that_choose_a_group_have_no_part_in_its_scores():
    """Gaps twice as large choose the same groups, and nothing else may follow from them."""
    rng = np.random.default_rng(0)
    members = membership.draw_memberships(n_pairs=8, n_examples=1000, rng=rng)
    logits = rng.standard_normal((16, 1000)) + members
    changed = logits.copy()
    changed[:8] *= 2
    labels = np.arange(1000) % 10
    found = [
        epsilon.exposed_groups(values, members, labels, share=0.05) for values in (logits, changed)
    ]
    assert found[0] == found[1]
    assert [row["n_pairs"] for row in found[0]] == [4, 4, 4]


def test_settings_tried_on_the_subset_are_compared_on_the_same_sets():
    rows = [
        {"epochs": epochs, "learning_rate": 0.02, "pair": pair, "accuracy": value + gain}
        for epochs, gain in ((100, 0.0), (300, 0.01))
        for pair, value in enumerate((0.2, 0.3, 0.25, 0.35))
    ]
    for epochs, words in ((300, "no better setting shown"), (100, "a better setting was tried")):
        setting = pd.DataFrame([{"epochs": epochs, "learning_rate": 0.02}])
        made = {"tuning": pd.DataFrame(rows), "setting": setting}
        row = study._tuning_verdict(made)
        assert row["verdict"] == words
        assert row["ours"] == pytest.approx(1.0 if epochs == 100 else 0.0)


def test_attacks_are_chosen_without_their_pair(digits):
    """Other logits of a pair change neither its attack nor its shadows' advantage."""
    logits = np.random.default_rng(1).standard_normal((8, N))
    changed = logits.copy()
    changed[2:4] = -5 * changed[2:4] + 1
    rows = [
        completed(made_up_tables(digits, 4, values))["attacks"].query("pair == 1 and side == 0")
        for values in (logits, changed)
    ]
    for column in ("shadow_advantage", "chosen"):
        assert rows[0][column].tolist() == rows[1][column].tolist()


def test_claims_stand_on_guesses_fixed_beforehand(exposed):
    row = exposed["claims"].iloc[0]
    assert (row["n_canaries"], row["n_guesses"]) == (N, 20)
    # The ten of S stand out, but where a shadow had one too its variance is large; the rest is
    # coins.
    assert row["n_correct_positive"] >= 8
    assert row["largest_from_runs"] == 0  # four pairs can show nothing
    assert set(exposed["exposed"]["group"]) == {epsilon.EVERYBODY, epsilon.CLASS, epsilon.SHARE}


def test_interval_columns_are_those_of_the_pairs():
    values = np.array([0.1, 0.3, 0.2, 0.6, 0.5, 0.1])
    columns = study.interval_columns("x", values)
    mean, low, high = membership.pair_interval(values)
    assert (columns["x"], columns["x_low"]) == (pytest.approx(mean), pytest.approx(low))
    assert columns["x_high"] == pytest.approx(high)


def test_ends_of_student_intervals_by_hand():
    """t at 0.975 with 3 degrees of freedom is 3.1824."""
    ends = {"mean": 1.0, "standard_error": 0.5, "n_values": 4}
    assert intervals.t_lower(**ends) == pytest.approx(1 - 3.18245 * 0.5, abs=1e-4)
    assert intervals.t_upper(**ends) == pytest.approx(1 + 3.18245 * 0.5, abs=1e-4)
    assert intervals.t_lower(**ends, significance=0.001) < intervals.t_lower(**ends)


def test_delta_at_zero_of_one_gaussian_release():
    """Total variation of N(0, 1) and N(1, 1): 2Φ(½) − 1."""
    found = accounting.delta(noise_multiplier=1.0, epsilon=0.0, sampling_rate=1.0, steps=1)
    assert found == pytest.approx(0.382925, abs=1e-4)
    assert found >= 0.382924
    assert accounting.delta(noise_multiplier=0, epsilon=0.0, sampling_rate=0.1, steps=3) == 1
    with pytest.raises(WorkbookError, match="epsilon = -1"):
        accounting.delta(noise_multiplier=1.0, epsilon=-1, sampling_rate=1.0, steps=1)


@pytest.mark.parametrize("name", study.FIGURES)
def test_figures_show_what_the_tables_hold(exposed, name, tmp_path):
    changed = dict(exposed)
    changed["schemes"] = exposed["schemes"].assign(advantage_low=-0.2)
    roc = exposed["roc"]
    changed["roc"] = roc.assign(true_positive_rate=roc["true_positive_rate"] ** 0.5)
    drawn_bytes = [
        figures.save(study.FIGURES[name].draw(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((exposed, exposed, changed))
    ]
    assert drawn_bytes[0] == drawn_bytes[1] != drawn_bytes[2]


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.02, 0.01, 0.03), "agrees"),
        ((0.02, -0.02, 0.06), "not distinguishable"),
        ((0.04, 0.03, 0.05), "differs: more is given away here"),
        ((-0.02, -0.03, -0.01), "differs: less is given away here"),
    ],
)
def test_an_advantage_is_held_against_the_papers(interval, words):
    """The paper has 1.06 ± 1.20 % for condensation."""
    names = ("advantage", "advantage_low", "advantage_high")
    row = {"scheme": schemes.DM_REAL, "protocol": study.UNIVERSE, "n_pairs": 4}
    row |= dict(zip(names, interval, strict=True))
    made = {"schemes": pd.DataFrame([row]), "training_sets": pd.DataFrame({"n_universe": [1000]})}
    assert study._advantage_verdict(made, schemes.DM_REAL)["verdict"] == words


def test_nothing_follows_from_an_advantage_that_is_not_finite():
    with pytest.raises(WorkbookError, match="allowed: finite numbers"):
        study.against_paper((np.nan, np.nan, np.nan), (0.0, 0.1))


def test_logits_that_are_not_finite_are_refused():
    for value in (np.inf, np.nan, 7e4):
        with pytest.raises(WorkbookError, match="training diverged"):
            networks.pack_numbers(np.array([1.0, value]))


@pytest.mark.parametrize(
    ("first", "what", "sign", "words"),
    [
        (schemes.SUBSET, "advantage", 1, "differs: more given away with DM from noise"),
        (schemes.SUBSET, "accuracy", 1, "more accuracy with DM from noise"),
        (schemes.LITTLE_NOISE, "accuracy", 1, "differs: more accuracy with DM from noise"),
        (schemes.LITTLE_NOISE, "accuracy", -1, "less accuracy with DM from noise"),
        (schemes.LITTLE_NOISE, "advantage", -1, "differs: less given away with DM from noise"),
        (schemes.LITTLE_NOISE, "advantage", 0, "not distinguishable"),
        (schemes.private_name(1.0), "advantage", -1, "less given away with DM from noise"),
    ],
)
def test_a_comparison_that_the_paper_denies_is_said_to_differ(
    monkeypatch, first, what, sign, words
):
    found = (0.02 * sign, 0.02 * sign - 0.01, 0.02 * sign + 0.01)
    monkeypatch.setattr(study, "difference", lambda *_: found)
    rows = study._compared({}, first, (schemes.DM_NOISE,))
    assert rows[what == "advantage"]["verdict"] == words
