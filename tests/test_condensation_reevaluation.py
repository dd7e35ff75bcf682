"""Study 03: its notebook's parameters, and the whole run at tiny sizes."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from study_notebook import check_profile, check_whole_run, checked, declared, profile

from lib import (
    condensation_beyond,
    condensation_epsilon,
    condensation_models,
    condensation_theory,
    condensation_worst_case,
    data,
    parameters,
    paths,
    workbook,
)
from lib import condensation_reevaluation as study
from lib.errors import WorkbookError

PROFILES = ("smoke", "cpu", "paper")
TINY = {
    "dataset": "mnist5k",
    "device": "cpu",
    "n_jobs": 1,
    "n_universe": 1000,
    "n_pairs": 4,
    "n_test": 20,
    "width": 2,
    "epochs": 2,
    "tuning_epochs": [1],
    "tuning_learning_rates": [0.01],
    "full_epochs": 1,
    "full_batch_size": 250,
    "n_iterations": 1,
    "real_batch": 4,
    "dp_epsilons": [8.0],
    "little_noise_multiplier": 1.0,
    "dp_sampling_rate": 0.1,
    "dp_steps": 1,
    "claim_n_guesses": 20,
    "exposed_share": 0.05,
    "worst_n_models": 2,
    "worst_n_pilots": 8,
    "worst_n_others": 3,
    "worst_width": 2,
    "worst_n_per_class": 2,
    "worst_n_iterations": 1,
    "worst_epochs": 1,
    "worst_epsilons": [8.0],
    "worst_sampling_rate": 0.5,
    "worst_steps": 1,
    "theory_n_iterations": 3,
    "theory_n_per_class": 2,
    "canary_n_classes": 100,
    "canary_n_guesses": 20,
    "canary_n_iterations": 1,
    "canary_epochs": 1,
    "canary_class_size": 5,
    "grid_n_models": 2,
    "grid_n_per_class": [1],
    "grid_n_iterations": [0, 1],
}
CHANGES = {
    "n_universe": 2000,
    "n_pairs": 5,
    "n_test": 21,
    "width": 3,
    "epochs": 3,
    "learning_rate": 0.03,
    "tuning_epochs": [3],
    "tuning_learning_rates": [0.05],
    "full_epochs": 2,
    "full_batch_size": 200,
    "n_iterations": 2,
    "real_batch": 5,
    "image_learning_rate": 0.5,
    "dp_epsilons": [7.0],
    "little_noise_multiplier": 1.1,
    "delta": 1e-6,
    "significance": 0.1,
    "dp_sampling_rate": 0.2,
    "dp_steps": 2,
    "clip_norm": 2.0,
    "dp_learning_rate": 0.25,
    "claim_n_guesses": 21,
    "exposed_share": 0.1,
    "worst_n_models": 3,
    "worst_n_pilots": 9,
    "worst_n_others": 4,
    "worst_width": 3,
    "worst_n_per_class": 3,
    "worst_n_iterations": 2,
    "worst_epochs": 2,
    "worst_epsilons": [7.0],
    "worst_sampling_rate": 0.4,
    "worst_steps": 2,
    "theory_n_iterations": 4,
    "theory_n_per_class": 3,
    "canary_n_classes": 110,
    "canary_n_guesses": 21,
    "canary_n_iterations": 2,
    "canary_epochs": 2,
    "canary_class_size": 6,
    "grid_n_models": 3,
    "grid_n_per_class": [2],
    "grid_n_iterations": [2],
}
CELLS = (
    condensation_models.mechanism_cells,
    condensation_models.example_cells,
    condensation_models.training_set_cells,
    condensation_models.trained_cells,
    condensation_models.setting_cells,
    condensation_models.tuning_cells,
    condensation_epsilon.plan_cells,
    condensation_worst_case.settled_cells,
    condensation_worst_case.model_cells,
    condensation_theory.shift_cells,
    condensation_theory.picture_cells,
    condensation_beyond.canary_cells,
    condensation_beyond.grid_cells,
)


def all_cells(p):
    """Every cell of the study, with a stand-in for the mechanisms' noise."""
    session = SimpleNamespace(p=p, dataset=data.load("mnist5k"), tables={})
    for name, cells in (
        ("mechanisms", condensation_models.mechanism_cells),
        ("worst_mechanisms", condensation_worst_case.settled_cells),
    ):
        settled = [cell | {"noise_multiplier": 1.0} for cell in cells(session)]
        session.tables[name] = pd.DataFrame(settled)
    return json.dumps([cells(session) for cells in CELLS])


def test_notebook_declares_exactly_the_parameters():
    assert declared(study).keys() == study.PARAMETERS.keys()


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_hold_values_that_need_no_conversion(name):
    check_profile(study, name)


def test_smoke_profile_is_what_the_notebook_declares():
    assert declared(study) | profile(study, "smoke") == declared(study)


@pytest.mark.parametrize("name", study.PARAMETERS)
def test_every_parameter_that_changes_results_changes_a_cell(name):
    if not study.PARAMETERS[name].changes_results or name in ("seed", "dataset", "device"):
        assert name in parameters.SHARED  # seed and dataset are part of every cell's key
        return
    assert all_cells(checked(study, **TINY)) != all_cells(
        checked(study, **TINY | {name: CHANGES[name]})
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_pairs": 3}, "n_pairs = 3 .int. is not allowed: it must be a whole number at least 4"),
        ({"worst_n_pilots": 7}, "worst_n_pilots = 7 .int. is not allowed"),
        ({"claim_n_guesses": 501}, "claim_n_guesses = 501; allowed: at most half of n_universe"),
        ({"canary_n_guesses": 51}, "canary_n_guesses = 51; allowed: at most half of canary_n_cl"),
        ({"dp_epsilons": [0.0]}, "dp_epsilons"),
        ({"delta": 1.0}, "delta = 1.0 .float. is not allowed"),
        ({"exposed_share": 0.04}, "exposed_share = 0.04; allowed: at least 0.05, which is 50 ex"),
        ({"worst_epsilons": [101.0]}, "worst_epsilons = .101.0. .list. is not allowed"),
        ({"worst_epsilons": [1.0, 1.00000001]}, "worst_epsilons = .1.0, 1.00000001.; allowed"),
        ({"dp_epsilons": [2.0, 2.00000001]}, "dp_epsilons = .2.0, 2.00000001.; allowed: numbers"),
    ],
)
def test_bad_parameters_are_refused_by_name(changes, words):
    with pytest.raises(WorkbookError, match=words):
        checked(study, **TINY | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_universe": 1500}, "n_universe = 1500; allowed: multiples of 1000 from 1000 to 4000"),
        ({"n_test": 1001}, "n_test = 1001; allowed: at most 1000"),
        ({"worst_n_per_class": 4}, "worst_n_per_class = 4; allowed: at most worst_n_others"),
        ({"worst_n_others": 401}, "worst_n_others = 401; allowed: at most 400"),
        ({"canary_n_classes": 105}, "canary_n_classes = 105; allowed: multiples of 10"),
        ({"canary_class_size": 391}, "canary_class_size = 391; allowed: at most 390"),
    ],
)
def test_sizes_that_a_dataset_has_not_are_refused_before_any_work(changes, words, tmp_path):
    namespace = declared(study) | TINY | {"results_dir": str(tmp_path)} | changes
    with pytest.raises(WorkbookError, match=words):
        workbook.begin(namespace, study)


FORGERIES = [
    ("verdicts", "verdict", "proven", "but condensation_reevaluation.verdicts gives"),
    ("models", "test_accuracy", "0.123", "but intervals.rate of its row gives"),
    ("attacks", "advantage", "0.9", "but membership.advantage of its row gives"),
    ("attacks", "auc", "0.9", "but membership.area of its row gives"),
    ("schemes", "advantage_low", "0.9", "but intervals.t_lower of its row gives"),
    ("mechanisms", "delta_at_zero", "0.001", "but accounting.delta_at_zero_of_rows of its row"),
    ("claims", "criticised_epsilon", "9.0", "but membership.log_ratio of its row gives"),
    ("claims", "epsilon_lower_bound", "9.0", "but one_run.epsilon_lower_bound of its row gives"),
    ("roc", "true_positive_rate", "0.987", "but condensation_membership.roc_rows gives"),
    ("exposed", "log_ratio", "9.0", "but condensation_epsilon.exposed_rows gives"),
    (
        "detections",
        "epsilon_lower_bound",
        "9.0",
        "but one_run.epsilon_lower_bound_from_runs of its row gives",
    ),
    ("detections", "threshold", "0.123", "but condensation_worst_case.detection_rows gives"),
    (
        "exponential",
        "epsilon",
        "0.1",
        "but condensation.exponential_mechanism_epsilon of its row gives",
    ),
    ("grid", "test_accuracy", "0.123", "but condensation_beyond.grid_rows gives"),
]


@pytest.mark.parametrize("name", ["smoke", "paper"])
def test_profile_with_tiny_sizes_runs_to_a_sound_package(name, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    values = profile(study, name) | TINY | {"results_dir": str(tmp_path)}
    check_whole_run(study, values, FORGERIES if name == "smoke" else (), tmp_path)
