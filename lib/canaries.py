"""Canaries: examples made to be noticed, whose membership an auditor then guesses.

White-box ("gradient attack", Steinke et al., arXiv:2305.08846, Section 6): canary i is a gradient
of norm C along a coordinate of its own, with a sign of its own so that together the canaries pull
the network nowhere. Its membership is a fair coin; a canary that is in is sampled at rate q in each
step like any example. The auditor sees every released gradient.

Black-box: canaries are images with labels, and the auditor sees the losses of the final model.

Everything here is NumPy: vectors come in and go out as arrays.
"""

from __future__ import annotations

import numpy as np

from lib.errors import WorkbookError

SCORES = {
    "raw_sum": "sum over steps of the released gradient along the canary",
    "raw_likelihood_ratio": "log-likelihood ratio of the released gradient along the canary",
    "residual_sum": "the sum, after the ordinary examples' clipped gradients are taken off",
    "residual_likelihood_ratio": "the log-likelihood ratio, after the same subtraction",
}
IMAGE_KINDS = {
    "mislabelled": "a real image with a wrong label",
    "blank": "an image of one colour with a label at random",
}
# By Neyman and Pearson none is better. Fixed beforehand: no bound is picked from among the scores.
BEST_SCORE = "residual_likelihood_ratio"


class DiracCanaries:
    """m canaries in one training run: their coins, their places, and the evidence so far.

    Hand :meth:`gradient` and :meth:`observe` to :func:`lib.dpsgd.train`, then read :meth:`scores`.

    The residual scores subtract the sum of the ordinary examples' clipped gradients. That is within
    the adversary's rights: differential privacy lets it know all data but the target, and the
    ordinary examples' batches are drawn independently of the coins. What canaries a batch held is
    never used. An ordinary gradient sum is easily larger than C on a coordinate, so raw scores are
    weak; residual scores do not depend on the images at all.
    """

    def __init__(
        self,
        *,
        n_canaries: int,
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
            n_canaries: m, at most ``n_parameters``.
            n_parameters: d, length of the flat gradient.
            clip_norm: C.
            noise_multiplier: σ > 0.
            sampling_rate: q.
            coin_rng: memberships. Each purpose has a stream of its own.
            place_rng: coordinates and signs, which the auditor knows.
            batch_rng: which members are in which batch.

        Raises:
            WorkbookError: for more canaries than parameters, or σ = 0.
        """
        if not 1 <= n_canaries <= n_parameters:
            raise WorkbookError(
                f"n_canaries = {n_canaries}; allowed: 1 to {n_parameters}, the model's parameters"
            )
        if not noise_multiplier > 0:
            raise WorkbookError(
                f"noise_multiplier = {noise_multiplier}; allowed: greater than 0 (without noise "
                "there is nothing to weigh)"
            )
        self.n_parameters = n_parameters
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier
        self.sampling_rate = sampling_rate
        self.included = coin_rng.random(n_canaries) < 0.5
        self.places = place_rng.permutation(n_parameters)[:n_canaries]
        self.signs = place_rng.choice([-1.0, 1.0], n_canaries)
        self._batch_rng = batch_rng
        self._scores = {name: np.zeros(n_canaries) for name in SCORES}

    def gradient(self, step: int) -> np.ndarray:
        """(d,) float32 sum of the gradients of the canaries in this step's batch."""
        sampled = self._batch_rng.random(self.included.size) < self.sampling_rate
        total = np.zeros(self.n_parameters, dtype=np.float32)
        drawn = self.included & sampled
        total[self.places[drawn]] = self.clip_norm * self.signs[drawn]
        return total

    def observe(self, gradient: np.ndarray, ordinary: np.ndarray) -> None:
        """Weigh one released gradient.

        Args:
            gradient: (d,) released sum: ordinary examples, canaries, noise.
            ordinary: (d,) clipped sum of the ordinary examples alone.
        """
        unit = self.signs / self.clip_norm
        raw = gradient[self.places] * unit
        residual = raw - ordinary[self.places] * unit
        for kind, along in (("raw", raw), ("residual", residual)):
            self._scores[f"{kind}_sum"] += along
            self._scores[f"{kind}_likelihood_ratio"] += log_likelihood_ratio(
                along, noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate
            )

    def scores(self) -> dict[str, np.ndarray]:
        """Each score of ``SCORES``: (m,), larger where membership is likelier."""
        return {name: score.copy() for name, score in self._scores.items()}


def log_likelihood_ratio(
    along: np.ndarray, *, noise_multiplier: float, sampling_rate: float
) -> np.ndarray:
    """Evidence of one release for membership: log of in against out, elementwise, in nats.

    log(1 − q + q·exp((2y − 1)/(2σ²))) for a released value y, in units of C, that is N(0, σ²)
    without the canary and N(1, σ²) with probability q with it. Summed over steps it is, by Neyman
    and Pearson, the best score there is.

    Args:
        along: released values along each canary, in units of the clip norm.
        noise_multiplier: σ > 0.
        sampling_rate: q in (0, 1].
    """
    exponent = (2 * along - 1) / (2 * noise_multiplier**2)
    if sampling_rate == 1:
        return exponent
    return np.logaddexp(np.log1p(-sampling_rate), np.log(sampling_rate) + exponent)


def ideal_scores(
    *,
    n_canaries: int,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    coin_rng: np.random.Generator,
    batch_rng: np.random.Generator,
    noise_rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Coins and best scores of an auditor who is disturbed by nothing but the mechanism's noise.

    One coordinate a canary, no ordinary example, no network: what no audit of the same mechanism
    by the same guesses can beat on average.

    Args:
        n_canaries, noise_multiplier, sampling_rate: as in :class:`DiracCanaries`.
        steps: T.
        coin_rng, batch_rng, noise_rng: a stream for each purpose.

    Returns:
        (m,) booleans, the coins, and (m,) log-likelihood ratios.
    """
    included = coin_rng.random(n_canaries) < 0.5
    score = np.zeros(n_canaries)
    for _ in range(steps):
        sampled = batch_rng.random(n_canaries) < sampling_rate
        along = (included & sampled) + noise_multiplier * noise_rng.standard_normal(n_canaries)
        score += log_likelihood_ratio(
            along, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate
        )
    return included, score


def image_canaries(
    kind: str, images: np.ndarray, labels: np.ndarray, n_classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Images that a network can only know by having been trained on them.

    Args:
        kind: of :data:`IMAGE_KINDS`.
        images: (m, height, width, channels) uint8 real images, which the training set does not
            hold otherwise.
        labels: (m,) integers, their classes.
        n_classes: number of classes, at least 2.
        rng: draws colours and labels.

    Returns:
        (m, height, width, channels) uint8 and (m,) int64: what is to be in or out.

    Raises:
        WorkbookError: for an unknown kind.
    """
    if kind not in IMAGE_KINDS:
        raise WorkbookError(f"kind = {kind!r}; allowed: {', '.join(IMAGE_KINDS)}")
    if kind == "mislabelled":
        wrong = labels + rng.integers(1, n_classes, len(labels))
        return images, (wrong % n_classes).astype(np.int64)
    colours = rng.integers(0, 256, (len(images), 1, 1, images.shape[3]), dtype=np.uint8)
    return np.broadcast_to(colours, images.shape), rng.integers(0, n_classes, len(images))
