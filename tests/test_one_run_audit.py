"""Study 01: its cells, its comparison with the paper, its notebook's parameters."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from study_notebook import check_profile, check_whole_run, checked, declared, profile

from lib import canaries, data, figures, parameters, paths, sweep, verification, workbook
from lib import one_run_audit as study
from lib import one_run_beyond as beyond
from lib import one_run_black_box as black_box
from lib import one_run_faults as as_test
from lib import one_run_procedures as procedures
from lib import one_run_sweeps as sweeps
from lib import one_run_white_box as white_box
from lib.errors import WorkbookError

PROFILES = ("smoke", "cpu", "paper")
AUDIT_FIGURES = ("bounds", "scores")  # the others have tests of their own
TINY = {
    "dataset": "mnist5k",
    "device": "cpu",
    "epsilons": [2.0, 8.0],
    "n_canaries": 500,
    "n_simulations": 3,
    "n_train": 16,
    "sampling_rate": 0.5,
    "steps": 2,
    "n_runs": 1,
    "n_jobs": 1,
    "sweep_n_canaries": [100, 400],
    "sweep_n_train": [16],
    "sweep_steps": [2],
    "sweep_base": [400, 16, 2],
    "sweep_runs": 1,
    "black_box_n_canaries": [20, 40],
    "black_box_n_train": [16],
    "black_box_epsilons": [8.0],
    "black_box_base": [30, 2],
    "black_box_share": 0.5,
    "black_box_runs": 2,
    "n_simulated_audits": 20,
    "pair_epsilons": [8.0],
    "pair_runs": 1,
    "curve_n_guesses": [40, 80],
    "curve_runs": 1,
    "curve_simulations": 2,
    "many_n_runs": [10, 1000],
    "fault_right_runs": 1,
    "fault_wrong_runs": 1,
    "fault_pairs": 1,
}


def plan(**changes):
    cell = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "sampling_rate": 1.0,
        "steps": 1,
        "significance": 0.05,
        "n_canaries": 2000,
        "n_positive": None,
        "n_negative": None,
        "n_simulations": 5,
    } | changes
    (row,) = white_box.plan(cell, sweep.Streams(0, cell), None)
    return row


# ------------------------------------------------------------------------------------- cells


def test_plan_spends_guesses_where_they_pay():
    full, rare = plan(), plan(sampling_rate=0.02, steps=50)
    # At q = 1 both sides of the scores say the same; a rarely sampled member looks like no member.
    assert full["n_negative"] > 0.3 * full["n_positive"] > 0
    assert rare["n_negative"] < 0.3 * rare["n_positive"]
    assert full["theoretical_epsilon"] <= 4.0
    assert full["counts_from"] == "simulation"


def test_plan_takes_counts_from_the_parameters():
    row = plan(n_positive=0, n_negative=30)
    assert (row["n_positive"], row["n_negative"], row["counts_from"]) == (0, 30, "parameters")


def test_ceiling_is_what_an_independent_simulation_found():
    """Theoretical ε = 4, q = 0.25, T = 100, 50,000 canaries: 2.31 with the best counts."""
    row = plan(sampling_rate=0.25, steps=100, n_canaries=50_000, n_simulations=6)
    del row["counts_from"]
    rows = white_box.ceiling(row, sweep.Streams(0, row), None)
    bounds = [each["epsilon_lower_bound"] for each in rows]
    # Six audits scatter by 0.15, so their mean by 0.06; three of those.
    assert np.mean(bounds) == pytest.approx(2.31, abs=0.18)


def test_one_training_run_is_audited_with_each_score():
    p = checked(study, **TINY, all_n_runs=0)
    session = SimpleNamespace(p=p, dataset=data.load("mnist5k"), tables={})
    plans = [row for cell in white_box.plan_cells(session) for row in [plan(**cell)]]
    session.tables["plans"] = pd.DataFrame(plans)
    cell = white_box.white_box_cells(session)[0]
    rows, again, other = (
        white_box.white_box(cell, sweep.Streams(seed, cell), session.dataset) for seed in (0, 0, 1)
    )
    assert rows == again
    assert rows != other
    assert [row["score"] for row in rows] == list(canaries.SCORES)
    assert len({row["n_included"] for row in rows}) == 1
    for row in rows:
        assert row["n_correct"] == row["n_correct_positive"] + row["n_correct_negative"]
        assert row["n_guesses"] == plans[0]["n_positive"] + plans[0]["n_negative"]


# ---------------------------------------------------------------------------------- verdicts


def tables(bounds, ceiling=2.0, scatter=0.1):
    """Audits at ε = 4 with these bounds, few images then all, and a ceiling of 100 audits."""
    columns = {"epsilon": 4.0, "sampling_rate": 0.5, "steps": 2, "n_guesses": 9, "n_correct": 8}
    columns |= {"delta": 1e-5, "n_train": 7, "test_accuracy": 0.5}
    audits = [
        columns | {"setting": setting, "score": canaries.BEST_SCORE, "epsilon_lower_bound": bound}
        for setting, values in zip((white_box.FEW, white_box.ALL), bounds, strict=True)
        for bound in values
    ]
    spread = ceiling + scatter * np.linspace(-1.7, 1.7, 100)
    simulated = [columns | {"epsilon_lower_bound": bound} for bound in spread]
    return {"audits": pd.DataFrame(audits), "ceiling": pd.DataFrame(simulated)}


def verdict(made, claim):
    (found,) = [row for row in white_box.verdicts(made) if row["claim"].startswith(claim)]
    return found["verdict"]


def test_verdicts_follow_from_the_intervals():
    near = tables(([1.9, 1.95, 2.0], [1.93, 1.97]))
    assert verdict(near, "white-box bound at ε = 4") == "agrees"  # 1.8 is two scatters off
    assert verdict(near, "share of the ceiling, few") == "at least 90%"
    assert verdict(near, "more ordinary") == "agrees"
    above = tables(([2.5, 2.5, 2.5], [2.5, 2.5]))
    assert verdict(above, "white-box bound at ε = 4") == "differs: ours is tighter"
    below = tables(([1.2, 1.2, 1.2], [1.19, 1.21]))
    assert verdict(below, "white-box bound at ε = 4") == "differs: ours is looser"
    assert verdict(below, "share of the ceiling, few") == "below 90%"
    apart = tables(([2.0, 2.01, 1.99], [1.0, 1.01]))
    assert verdict(apart, "more ordinary") == "differs: the share changes"
    vague = tables(([2.0, 2.0], [2.1]), scatter=0.8)  # equal runs do not make it certain
    assert verdict(vague, "more ordinary") == "not distinguishable"
    assert verdict(vague, "share of the ceiling, few") == "not distinguishable"


def test_share_of_the_ceiling_is_known_as_well_as_it_scatters():
    """Simulated: 95 % intervals of the share cover the truth, within four standard errors."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        made = tables((2.0 + 0.3 * rng.standard_normal(2), [1.0]))
        made["ceiling"]["epsilon_lower_bound"] = 2.0 + 0.3 * rng.standard_normal(100)
        row = next(row for row in white_box.verdicts(made) if "ceiling, few" in row["claim"])
        covered += row["low"] <= 1.0 <= row["high"]
    assert abs(covered / 1000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 1000)


def test_reader_sees_whole_texts():
    made = tables(([1.0, 1.2], [0.5]))
    assert "<td>all images</td>" in workbook.show(white_box.summary(made)).data
    rows = pd.DataFrame(white_box.verdicts(made))
    assert all(reason in workbook.show(rows).data for reason in rows["reason"])


def test_summary_gives_the_share_of_the_ceiling():
    summary = white_box.summary(tables(([1.0, 1.2], [0.01])))
    assert summary["of ceiling"].tolist() == pytest.approx([0.55, 0.005])
    assert summary["paper"].tolist() == [1.8, 1.8]
    assert (summary["low"] >= 0).all()


def test_figures_show_what_the_tables_hold(tmp_path):
    first, second = (tables((few, [1.0])) for few in ([1.0, 2.0], [1.0, 2.5]))
    for name in AUDIT_FIGURES:
        drawn = [
            figures.save(study.FIGURES[name].draw(made), tmp_path / f"{name}{i}")[0].read_bytes()
            for i, made in enumerate((first, first, second))
        ]
        assert drawn[0] == drawn[1]
        assert drawn[0] != drawn[2]


# -------------------------------------------------------------------------------- parameters


def test_notebook_declares_exactly_the_parameters():
    assert declared(study).keys() == study.PARAMETERS.keys()


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_hold_values_that_need_no_conversion(name):
    check_profile(study, name)


def test_smoke_profile_is_what_the_notebook_declares():
    assert declared(study) | profile(study, "smoke") == declared(study)


CHANGES = {
    "network": "wrn_16_4",
    "epsilons": [3.0],
    "delta": 1e-6,
    "significance": 0.01,
    "n_canaries": 600,
    "n_positive": [3, 4],
    "n_negative": [3, 4],
    "n_simulations": 4,
    "n_train": 17,
    "sampling_rate": 0.6,
    "steps": 3,
    "n_runs": 2,
    "all_sampling_rate": 0.3,
    "all_steps": 5,
    "all_n_runs": 2,
    "clip_norm": 2.0,
    "learning_rate": 0.25,
    "device": "cuda",
    "sweep_epsilon": 4.0,
    "sweep_sampling_rate": 0.3,
    "sweep_n_canaries": [100, 300],
    "sweep_n_train": [17],
    "sweep_steps": [3],
    "sweep_base": [400, 16, 3],
    "sweep_runs": 2,
    "black_box_n_canaries": [20, 50],
    "black_box_n_train": [17],
    "black_box_epsilons": [4.0],
    "black_box_base": [30, 3],
    "black_box_share": 0.4,
    "black_box_learning_rate": 0.5,
    "black_box_runs": 3,
    "n_simulated_audits": 21,
    "pair_epsilons": [4.0],
    "pair_runs": 2,
    "curve_n_guesses": [40],
    "curve_runs": 2,
    "curve_simulations": 3,
    "many_n_runs": [10],
    "fault_right_runs": 2,
    "fault_wrong_runs": 2,
    "fault_pairs": 2,
}
# A table of plans, the cells that make it, and the cells that are made from it.
PLANS = {
    "plans": (white_box.plan_cells, white_box.ceiling_cells, white_box.white_box_cells),
    "sweep_plans": (sweeps.plan_cells, sweeps.ceiling_cells, sweeps.audit_cells),
    "black_box_plans": (
        black_box.plan_cells,
        black_box.ceiling_cells,
        black_box.audit_cells,
    ),
    "pair_plans": (
        procedures.pair_plan_cells,
        procedures.pair_ceiling_cells,
        procedures.pair_audit_cells,
    ),
    "curve_plans": (
        beyond.plan_cells,
        beyond.curve_ceiling_cells,
        beyond.curve_audit_cells,
        beyond.many_run_cells,
    ),
}
OTHER_CELLS = (as_test.run_cells, as_test.pair_cells, procedures.procedure_cells)


def all_cells(p):
    """Every cell of the study, with stand-ins for what the plans would say."""
    session = SimpleNamespace(p=p, dataset=data.load("mnist5k"), tables={})
    made = [cells(session) for cells in OTHER_CELLS]
    for name, (plan_cells, *cells_from_plans) in PLANS.items():
        planned = plan_cells(session)
        settled = {"noise_multiplier": 1.0, "counts_from": "simulation"}
        settled |= {"add_remove_epsilon": 1.0, "n_guesses": 10} if name == "pair_plans" else {}
        session.tables[name] = pd.DataFrame([cell | settled for cell in planned])
        made += [planned, *(cells(session) for cells in cells_from_plans)]
    return json.dumps(made)


@pytest.mark.parametrize("name", study.PARAMETERS)
def test_every_parameter_that_changes_results_changes_a_cell(name):
    if not study.PARAMETERS[name].changes_results or name in ("seed", "dataset"):
        assert name in parameters.SHARED  # seed and dataset are part of every cell's key
        return
    assert all_cells(checked(study, **TINY)) != all_cells(
        checked(study, **TINY | {name: CHANGES[name]})
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilons": [0.0]}, "epsilons"),
        ({"delta": 1.0}, "delta"),
        ({"sampling_rate": 0}, "sampling_rate"),
        ({"n_positive": [600, 1], "n_negative": [0, 0]}, "n_positive = 600 and n_negative = 0"),
        ({"n_positive": [1]}, "n_positive = .1.; allowed: 'simulated', or 2 counts"),
        ({"dataset": "cifar11"}, "dataset = 'cifar11'"),
        ({"sweep_base": [100, 10]}, "sweep_base = .100, 10.; allowed: three numbers"),
        ({"black_box_base": [100]}, "black_box_base = .100.; allowed: two numbers"),
        ({"black_box_base": [19, 2]}, "black_box_base = .19, 2.; allowed: two numbers, canaries"),
        ({"black_box_share": 0.2}, "black_box_share = 0.2 of 20 canaries is 4 guesses, which all"),
        ({"sweep_sampling_rate": 1.0}, "sweep_sampling_rate = 1.0"),
        ({"curve_n_guesses": [41]}, "curve_n_guesses = .41.; allowed: even numbers of at most"),
        ({"curve_n_guesses": [402]}, "curve_n_guesses = .402.; allowed: even numbers of at most"),
        ({"many_n_runs": [11]}, "many_n_runs = .11.; allowed: even numbers"),
    ],
)
def test_bad_parameters_are_refused_by_name(changes, words):
    with pytest.raises(WorkbookError, match=words):
        checked(study, **TINY | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_canaries": 60_000}, "n_canaries = 60000; allowed: at most 56394"),
        ({"n_train": 4001}, "n_train = 4001; allowed: at most 4000"),
        ({"sweep_n_canaries": [60_000]}, "sweep_n_canaries = 60000; allowed: at most 56394"),
        ({"sweep_n_train": [16, 4001]}, "sweep_n_train = 4001; allowed: at most 4000"),
        ({"sweep_base": [400, 4001, 2]}, "sweep_base = 4001; allowed: at most 4000"),
        ({"black_box_n_train": [3971]}, "black_box_n_train needs 4001 images; allowed: at most"),
    ],
)
def test_sizes_that_no_section_can_have_are_refused_before_the_first(changes, words, tmp_path):
    namespace = declared(study) | TINY | {"results_dir": str(tmp_path)} | changes
    with pytest.raises(WorkbookError, match=words):
        workbook.begin(namespace, study)


# ------------------------------------------------------------------------------ the whole run


FORGERIES = [
    ("verdicts", "verdict", "proven", "but one_run_audit.verdicts gives"),
    ("audits", "theoretical_epsilon", "99.0", "but accounting.epsilon_of_rows of its row gives"),
    ("audits", "n_correct_positive", "0", "but verification.total of its row gives"),
    ("audits", "epsilon_lower_bound", "7.0", "but one_run.epsilon_lower_bound of its row gives"),
    ("plans", "noise_multiplier", "0.7", "but accounting.epsilon_of_rows of its row gives"),
    ("sweeps", "epsilon_lower_bound", "7.0", "but one_run.epsilon_lower_bound of its row gives"),
    ("curve_audits", "gaussian_epsilon", "7.5", "but trade_off.smallest_unrefuted_epsilon of its"),
    ("many_runs", "epsilon_lower_bound", "0.5", "but one_run.epsilon_lower_bound_from_runs of"),
    ("fault_runs", "n_correct_positive", "0", "but verification.total of its row gives"),
]


def check_omissions(descriptor):
    """What a descriptor leaves out is named."""
    for resource in descriptor["resources"]:
        for key in ("claims", "derived"):
            resource.pop(key, None)
        for field in resource.get("schema", {}).get("fields", []):
            field.pop("recipe", None)
    omitted = verification.omitted_checks(descriptor, study.TABLES)
    for words in ("column epsilon_lower_bound lacks its recipe", "the claim", "does not say that"):
        assert any(words in problem for problem in omitted)


@pytest.mark.parametrize("name", ["smoke", "paper"])
def test_profile_with_tiny_sizes_runs_to_a_sound_package(name, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    sizes = TINY | {
        "results_dir": str(tmp_path),
        "all_steps": 2,
        "all_sampling_rate": 0.05,
        "epsilons": [8.0],
    }
    values = profile(study, name) | sizes
    # A wide ResNet takes its time over a thousand test images, and there are dozens of runs.
    whole = data.load("mnist5k")
    few = replace(whole, test_images=whole.test_images[:50], test_labels=whole.test_labels[:50])
    monkeypatch.setattr(data, "load", lambda *_: few)
    forgeries = FORGERIES if name == "smoke" else ()
    check_omissions(check_whole_run(study, values, forgeries, tmp_path))
