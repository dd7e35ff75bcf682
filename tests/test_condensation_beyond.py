"""Study 03, the theory and what is beyond the paper: shifts, canaries in one condensation."""

import numpy as np
import pandas as pd
import pytest

from lib import condensation_beyond as beyond
from lib import condensation_theory as theory
from lib import data, sweep


@pytest.fixture(scope="module")
def digits():
    return data.load("mnist5k")


def test_linear_matching_is_its_closed_form_from_every_start(digits):
    for start in theory.STARTS:
        cell = {"start": start, "n_per_class": 2, "n_iterations": 300}
        (row,) = theory.shift(cell, sweep.Streams(0, cell), digits)
        assert row["largest_difference"] <= theory.CLOSE
        if start == theory.REAL:
            assert row["shift"] == pytest.approx(row["expected_shift"], rel=0.5)
        if start == theory.CENTRED:
            assert row["shift"] <= 1e-6


def canary_cell(classes, start, **changes):
    made = {
        "classes": classes,
        "start": start,
        "n_canaries": 100,
        "n_classes": 100 if classes == beyond.TINY else 10,
        "n_per_class": 1,
        "class_size": 5,
        "n_guesses": 20,
        "n_iterations": 0,
        "real_batch": 4,
        "image_learning_rate": 1.0,
        "learning_rate": 0.02,
        "epochs": 1,
        "width": 2,
        "device": "cpu",
        "delta": 1e-5,
        "significance": 0.05,
    }
    return made | changes


@pytest.mark.parametrize("setting", beyond.SETTINGS)
def test_canaries_are_one_a_coin(digits, setting):
    cell = canary_cell(*setting)
    (row,) = beyond.canaries(cell, sweep.Streams(0, cell), digits)
    assert row["n_canaries"] == 100
    assert 30 <= row["n_included"] <= 70
    assert row["n_guesses"] == 40
    assert row["n_always"] == (100 if setting[0] == beyond.TINY else 50)


def test_tiny_classes_have_an_image_and_a_canary_each(digits):
    cell = canary_cell(beyond.TINY, beyond.NOISE)
    inputs, labels, is_canary = beyond._with_canaries(cell, sweep.Streams(0, cell), digits)
    assert len(inputs) == 200
    for side in (is_canary, ~is_canary):
        assert sorted(labels[side].tolist()) == list(range(100))


def test_a_start_from_what_is_present_may_copy_canaries_and_one_from_the_others_never(digits):
    cell = canary_cell(beyond.TINY, beyond.PRESENT)
    streams = sweep.Streams(0, cell)
    inputs, labels, is_canary = beyond._with_canaries(cell, streams, digits)
    every = np.ones(200, dtype=bool)
    copies = {}
    for start in (beyond.ALWAYS, beyond.PRESENT):
        made = beyond._initial(cell | {"start": start}, streams, inputs, labels, is_canary, every)
        canaries = {image.numpy().tobytes() for image in inputs[is_canary]}
        copies[start] = sum(image.numpy().tobytes() in canaries for image in made)
    assert copies[beyond.ALWAYS] == 0
    assert 25 <= copies[beyond.PRESENT] <= 75


def test_verdicts_say_what_one_condensation_shows():
    row = {"classes": beyond.TINY, "start": beyond.NOISE, "n_correct": 38, "n_guesses": 40}
    row |= {"n_canaries": 100}
    for bound, words in ((1.5, "at least 1.50"), (0.0, "nothing shown")):
        frame = pd.DataFrame([row | {"epsilon_lower_bound": bound}])
        (verdict,) = beyond.verdicts({"canary_audits": frame})
        assert verdict["verdict"] == words
