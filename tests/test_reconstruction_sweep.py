"""Study 02: its notebook's parameters, and the whole run at tiny sizes."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from study_notebook import check_profile, check_whole_run, checked, declared, profile

from lib import data, parameters, paths, verification, workbook
from lib import reconstruction_attacks as attacks
from lib import reconstruction_bounds as bounds
from lib import reconstruction_images as images
from lib import reconstruction_sweep as study
from lib.errors import WorkbookError

PROFILES = ("smoke", "cpu", "paper")
TINY = {
    "dataset": "mnist5k",
    "device": "cpu",
    "n_jobs": 1,
    "steps": 4,
    "n_bound_rates": 2,
    "bound_epsilons": [4.0],
    "bound_steps": [2],
    "bound_sampling_rates": [0.5, 1.0],
    "bound_prior_sizes": [2, 10],
    "estimator_n_samples": [200],
    "estimator_repetitions": 2,
    "prior_n_images": 50,
    "prior_radii": [0.0, 9.0],
    "second_prior_radii": [0.0, 9.0],
    "epsilons": [4.0],
    "sampling_rates": [0.5, 1.0],
    "n_train": 8,
    "hidden_units": 2,
    "n_runs": 20,
    "n_rare_runs": 20,
    "second_dataset": "mnist5k",
    "second_sampling_rates": [0.5],
    "second_n_runs": 20,
    "n_idealised_runs": 20,
    "idealised_sampling_rates": [0.5, 1.0],
    "prior_sizes": [2],
    "exposed_sets": 2,
    "exposed_runs": 4,
    "image_epsilons": [2.0, 1000.0],
    "image_targets": 5,
    "image_shadow_models": 20,
    "image_known": 5,
    "image_steps": 2,
}
CHANGES = {
    "delta": 1e-6,
    "steps": 5,
    "n_bound_rates": 3,
    "bound_epsilons": [3.0],
    "bound_steps": [3],
    "bound_sampling_rates": [0.5],
    "bound_prior_sizes": [2, 11],
    "estimator_n_samples": [300],
    "estimator_repetitions": 3,
    "prior_n_images": 60,
    "prior_radii": [0.0],
    "second_prior_radii": [0.0],
    "epsilons": [3.0],
    "sampling_rates": [0.5],
    "prior_size": 9,
    "n_train": 9,
    "hidden_units": 3,
    "learning_rate": 0.25,
    "clip_norm": 2.0,
    "n_runs": 30,
    "n_rare_runs": 30,
    "second_sampling_rates": [1.0],
    "second_n_runs": 30,
    "n_idealised_runs": 30,
    "idealised_sampling_rates": [0.5, 0.9, 1.0],
    "prior_sizes": [3],
    "exposed_sets": 3,
    "exposed_runs": 6,
    "image_epsilons": [3.0],
    "image_targets": 6,
    "image_shadow_models": 21,
    "image_known": 6,
    "image_steps": 3,
}
CELLS = (
    bounds.figure_5_cells,
    bounds.bound_cells,
    bounds.estimator_cells,
    bounds.prior_cells,
    bounds.second_prior_cells,
    bounds.tiny_prior_cells,
    attacks.mechanism_cells,
    attacks.idealised_cells,
    attacks.network_cells,
    attacks.second_cells,
    attacks.exposed_cells,
    images.reference_cells,
    images.reconstruction_cells,
    images.second_reference_cells,
    images.second_reconstruction_cells,
)


def all_cells(p):
    """Every cell of the study, with a stand-in for the mechanisms' noise."""
    session = SimpleNamespace(p=p, dataset=data.load("mnist5k"), tables={})
    settled = [cell | {"noise_multiplier": 1.0} for cell in attacks.mechanism_cells(session)]
    session.tables["mechanisms"] = pd.DataFrame(settled)
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
    if name == "second_dataset":  # its checksum is part of the key
        return
    tiny = TINY | ({"sampling_rates": [0.05], "idealised_sampling_rates": [0.05, 0.5]})
    tiny = tiny if name == "n_rare_runs" else TINY
    assert all_cells(checked(study, **tiny)) != all_cells(
        checked(study, **tiny | {name: CHANGES[name]})
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilons": [0.0]}, "epsilons"),
        ({"sampling_rates": [0.2]}, "sampling_rates = .0.2.; allowed: rates that idealised_sampl"),
        ({"second_sampling_rates": [0.2]}, "second_sampling_rates = .0.2.; allowed: rates that"),
        ({"prior_size": 1}, "prior_size = 1 .int. is not allowed: it must be a whole number"),
        (
            {"second_dataset": "none"},
            "second_dataset = 'none' .text. is not allowed: it must be one of",
        ),
        ({"n_runs": 0}, "n_runs = 0"),
        ({"image_epsilons": [1e300]}, "image_epsilons"),
        ({"bound_sampling_rates": [1e-9]}, "bound_sampling_rates = .1e-09.; allowed: rates at"),
    ],
)
def test_bad_parameters_are_refused_by_name(changes, words):
    with pytest.raises(WorkbookError, match=words):
        checked(study, **TINY | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prior_n_images": 4001}, "prior_n_images = 4001; allowed: at most 4000, the training"),
        ({"n_train": 2001}, "n_train = 2001; allowed: at most 2000, half of the training images"),
        ({"exposed_sets": 2001}, "exposed_sets = 2001; allowed: at most 2000, half of the"),
        ({"image_targets": 1001}, "image_targets = 1001; allowed: at most 1000, the test images"),
        ({"image_known": 4000}, "image_known = 4000 with image_shadow_models = .*; allowed:"),
    ],
)
def test_sizes_that_no_section_can_have_are_refused_before_the_first(changes, words, tmp_path):
    namespace = declared(study) | TINY | {"results_dir": str(tmp_path), "prior_size": 3} | changes
    with pytest.raises(WorkbookError, match=words):
        workbook.begin(namespace, study)


FORGERIES = [
    ("verdicts", "verdict", "proven", "but reconstruction_sweep.verdicts gives"),
    ("network", "n_correct", "1", "but intervals.rate of its row gives"),
    ("network", "bound", "0.9", "but reconstruction.success_bound_of_rows of its row gives"),
    ("priors", "bound", "0.0", "but reconstruction.success_bound_of_rows of its row gives"),
    ("bounds", "bound", "0.9", "but reconstruction.success_bound_of_rows of its row gives"),
    (
        "image_reconstructions",
        "theoretical_epsilon",
        "0.5",
        "but accounting.gaussian_epsilon_of_rows of its row gives",
    ),
    (
        "image_reconstructions",
        "error_bound",
        "0.5",
        "but reconstruction.squared_error_bound of its row gives",
    ),
    ("exposed", "success_low", "0.9", "but intervals.rate_at_least of its row gives"),
]


@pytest.mark.parametrize("name", ["smoke", "paper"])
def test_profile_with_tiny_sizes_runs_to_a_sound_package(name, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    values = profile(study, name) | TINY | {"results_dir": str(tmp_path)}
    check_whole_run(study, values, FORGERIES if name == "smoke" else (), tmp_path)


def test_an_attack_above_its_bound_is_named(tmp_path):
    """200 of 1,000 where 0.1 is the bound: 20 % is above it beyond chance, 12 % is not."""
    fields = {field.name: field for field in study.TABLES["network"].fields}
    claim = study.TABLES["network"].claims[0]
    recipes = {name: field.recipe for name, field in fields.items() if field.recipe}
    for n_correct, n_problems in ((200, 1), (120, 0)):
        row = {
            "n_runs": 1000,
            "n_correct": n_correct,
            "bound": 0.1,
            "success_low": n_correct / 1001,
        }
        assert len(verification._claim_problems(pd.DataFrame([row]), claim, recipes)) == n_problems
