"""Canaries: coins, places, evidence, and what the evidence may depend on."""

import numpy as np
import pytest
from scipy import stats

from lib import canaries
from lib.errors import WorkbookError


def make(seed=0, **changes):
    options = {
        "n_canaries": 300,
        "n_parameters": 500,
        "clip_norm": 2.0,
        "noise_multiplier": 0.8,
        "sampling_rate": 0.3,
    } | changes
    coin, place, batch = np.random.SeedSequence(seed).spawn(3)
    return canaries.DiracCanaries(
        **options,
        coin_rng=np.random.default_rng(coin),
        place_rng=np.random.default_rng(place),
        batch_rng=np.random.default_rng(batch),
    )


def test_each_canary_has_its_own_coordinate_and_a_fair_coin():
    made = make(n_canaries=20_000, n_parameters=20_000)
    assert len(set(made.places)) == 20_000
    assert made.included.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(20_000))


def test_only_members_are_sampled_at_the_sampling_rate():
    made = make()
    total = sum((made.gradient(step) != 0).astype(int) for step in range(1000))
    assert not total[made.places[~made.included]].any()
    outside = np.setdiff1d(np.arange(500), made.places)
    assert not total[outside].any()
    drawn = total[made.places[made.included]]
    assert drawn.mean() == pytest.approx(300, abs=4 * np.sqrt(210 / drawn.size))
    assert drawn.var() == pytest.approx(210, rel=4 * np.sqrt(2 / drawn.size))
    gradient = made.gradient(0)
    assert set(np.unique(gradient)) == {-2.0, 0.0, 2.0}
    signed = gradient[made.places] * made.signs
    assert set(np.unique(signed)) == {0.0, 2.0}


def test_likelihood_ratio_is_the_ratio_of_densities():
    along = np.array([-3.0, -0.2, 0.5, 1.0, 4.0])
    for q in (0.001, 0.3, 1.0):
        member = q * stats.norm.pdf(along, 1, 0.7) + (1 - q) * stats.norm.pdf(along, 0, 0.7)
        expected = np.log(member / stats.norm.pdf(along, 0, 0.7))
        ours = canaries.log_likelihood_ratio(along, noise_multiplier=0.7, sampling_rate=q)
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-15)
    far = canaries.log_likelihood_ratio(
        np.array([-1e4, 1e4]), noise_multiplier=0.1, sampling_rate=0.5
    )
    assert np.isfinite(far).all()


def test_scores_by_hand():
    made = make(n_canaries=2, n_parameters=3, sampling_rate=1.0)
    for step in range(2):
        made.observe(np.array([3.0, 5.0, 7.0]), np.array([1.0, 1.0, 1.0]) * step)
    scores = made.scores()
    raw = made.signs * np.array([3.0, 5.0, 7.0])[made.places] / 2.0
    np.testing.assert_allclose(scores["raw_sum"], 2 * raw)
    np.testing.assert_allclose(scores["residual_sum"], 2 * raw - made.signs * 0.5)
    np.testing.assert_allclose(scores["raw_likelihood_ratio"], 2 * (2 * raw - 1) / (2 * 0.64))
    assert set(scores) == set(canaries.SCORES)


def test_residual_scores_do_not_depend_on_the_ordinary_examples():
    quiet, loud = make(), make()
    rng = np.random.default_rng(5)
    for step in range(20):
        noise = 1.6 * rng.standard_normal(500)
        ordinary = 100 * rng.standard_normal(500)
        gradient = quiet.gradient(step)
        np.testing.assert_array_equal(gradient, loud.gradient(step))
        quiet.observe(gradient + noise, np.zeros(500))
        loud.observe(gradient + noise + ordinary, ordinary)
    for name in ("residual_sum", "residual_likelihood_ratio"):
        np.testing.assert_allclose(loud.scores()[name], quiet.scores()[name], atol=1e-9)
        auc = stats.mannwhitneyu(
            loud.scores()[name][loud.included], loud.scores()[name][~loud.included]
        )
        assert auc.statistic / (loud.included.sum() * (~loud.included).sum()) > 0.8


def test_ideal_scores_are_those_of_an_undisturbed_run():
    """Same distribution of the likelihood ratio, in and out, by a two-sample test at 0.1 %."""
    made = make(seed=1, n_canaries=4000, n_parameters=4000, clip_norm=1.0)
    noise = np.random.default_rng(6)
    for step in range(15):
        made.observe(made.gradient(step) + 0.8 * noise.standard_normal(4000), np.zeros(4000))
    rngs = [np.random.default_rng(seed) for seed in np.random.SeedSequence(8).spawn(3)]
    included, ideal = canaries.ideal_scores(
        n_canaries=4000,
        noise_multiplier=0.8,
        sampling_rate=0.3,
        steps=15,
        coin_rng=rngs[0],
        batch_rng=rngs[1],
        noise_rng=rngs[2],
    )
    real = made.scores()["residual_likelihood_ratio"]
    assert stats.ks_2samp(real[made.included], ideal[included]).pvalue > 1e-3
    assert stats.ks_2samp(real[~made.included], ideal[~included]).pvalue > 1e-3
    assert stats.ks_2samp(real[made.included], ideal[~included]).pvalue < 1e-9


def test_likelihood_ratio_beats_the_sum_where_sampling_is_rare():
    rngs = [np.random.default_rng(seed) for seed in np.random.SeedSequence(9).spawn(3)]
    made = make(n_canaries=20_000, n_parameters=20_000, sampling_rate=0.01, noise_multiplier=0.4)
    for step in range(100):
        noise = 0.8 * rngs[0].standard_normal(20_000)
        made.observe(made.gradient(step) + noise, np.zeros(20_000))

    def share_right(name):
        return made.included[np.argsort(made.scores()[name])[-500:]].mean()

    assert share_right("residual_likelihood_ratio") > share_right("residual_sum") + 0.1


def test_refuses_by_name():
    with pytest.raises(WorkbookError, match="n_canaries = 501; allowed: 1 to 500"):
        make(n_canaries=501)
    with pytest.raises(WorkbookError, match=r"noise_multiplier = 0\.0"):
        make(noise_multiplier=0.0)


# ----------------------------------------------------------------------------------- images


def pictures(n=2000):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 4, 4, 3), dtype=np.uint8), rng.integers(0, 10, n)


def test_mislabelled_images_keep_their_pixels_and_get_each_wrong_label_alike():
    images, labels = pictures(9000)
    made, wrong = canaries.image_canaries(
        "mislabelled", images, labels, 10, np.random.default_rng(1)
    )
    assert (made == images).all()
    shift = (wrong - labels) % 10
    # 9 cells of 1,000 ± 30 by chance; four of those.
    assert shift.min() == 1
    assert np.abs(np.bincount(shift)[1:] - 1000).max() < 120


def test_blank_images_have_one_colour_each_and_labels_at_random():
    images, labels = pictures()
    made, drawn = canaries.image_canaries("blank", images, labels, 10, np.random.default_rng(1))
    assert made.shape == images.shape
    assert made.dtype == np.uint8
    assert (made == made[:, :1, :1]).all()
    assert len(np.unique(made[:, 0, 0], axis=0)) > 1990
    assert abs((drawn == labels).mean() - 0.1) < 4 * np.sqrt(0.09 / 2000)


def test_unknown_kind_of_image():
    with pytest.raises(WorkbookError, match="kind = 'noise'; allowed: mislabelled, blank"):
        canaries.image_canaries("noise", *pictures(), 10, np.random.default_rng(0))
