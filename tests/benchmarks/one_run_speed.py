"""The one-run bounds' time: every threshold against jax-privacy, one bound against Appendix D.

Every threshold: 10,000 canaries, "in" for the k highest scores, k = 1 … 10,000, each k tested at
0.05/10,000. From scores and coins to the largest bound, ours and jax-privacy's one-run auditor,
which looks at the vertices of the ROC curve's hull only. Its own correction divides by those
vertices, found from the coins; for the same answer it is given the level of all the thresholds.

One bound: 10⁶ guesses, ours and the pseudo-code of arXiv:2305.08846, Appendix D, in plain Python.

Processor time, which other work on the machine disturbs less than the clock. jax-privacy is
installed on first use, into .cache, with environment.yml's versions of what both use to calculate.

Run it on a quiet machine: python tests/benchmarks/one_run_speed.py [rounds]
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import numpy as np
from scipy import stats

from lib import one_run

N_CANARIES, SEPARATION, SIGNIFICANCE = 10_000, 2.7, 0.05
DELTAS = (1e-5, 1e-7, 1e-9, 0.0)
ONE_BOUND = {"n_canaries": 10**6, "n_guesses": 10**6, "n_correct": 750_000, "delta": 1e-5}

RIVAL_HOME = Path(__file__).resolve().parents[2] / ".cache" / "jax-privacy"
RIVAL_PINS = """\
jax-privacy==2.0.0
absl-py==2.5.1
annotated-types==0.8.0
attrs==23.2.0
chex==0.1.92
dm-tree==0.1.10
dp-accounting==0.6.0
jax==0.10.2
jaxlib==0.10.2
ml-dtypes==0.7.0
mpmath==1.4.1
numpy==2.4.6
opt-einsum==3.4.0
optax==0.2.8
pydantic==2.14.4
pydantic-core==2.50.5
scipy==1.17.1
toolz==1.2.0
typing-extensions==4.16.0
typing-inspection==0.4.5
wrapt==2.5.2
"""
# The body of CanaryScoreAuditor.epsilon_one_run, which divides the level as said above and refuses
# δ = 0, where its bound is the fastest.
RIVAL = """
import json, sys, time
import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor

given = np.load(sys.argv[1])
scores, included, level = given["scores"], given["included"], float(given["level"])
for delta in map(float, sys.stdin):
    started = time.process_time()
    auditor = CanaryScoreAuditor(scores[included], scores[~included])
    bound, _ = auditor._epsilon_one_run_all_thresholds(level, delta, one_sided=True)
    print(json.dumps([time.process_time() - started, float(bound)]), flush=True)
"""


def rival_python() -> Path:
    """The interpreter of jax-privacy's own environment, made if it is not there yet."""
    python, installed = RIVAL_HOME / "bin" / "python", RIVAL_HOME / "installed.txt"
    if not installed.exists() or installed.read_text() != RIVAL_PINS:
        venv.create(RIVAL_HOME, clear=True, with_pip=True)
        pins = RIVAL_HOME / "pins.txt"
        pins.write_text(RIVAL_PINS)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", pins], check=True)
        pins.rename(installed)  # only now: an installation cut short is made anew
    return python


def appendix_d(*, n_canaries: int, n_guesses: int, n_correct: int, delta: float) -> float:
    """The paper's loops, and its 30 bisections.

    The masses come from ``math.lgamma``: scipy's, one at a time, would take some 60 times longer.
    """
    m, r, v = n_canaries, n_guesses, n_correct

    def p_value(epsilon):
        q = 1 / (1 + math.exp(-epsilon))
        log_right, log_wrong, log_all = math.log(q), math.log1p(-q), math.lgamma(r + 1)
        largest_mean = total = 0.0
        for i in range(1, v + 1):
            right, wrong = v - i, r - v + i
            log_choices = log_all - math.lgamma(right + 1) - math.lgamma(wrong + 1)
            total += math.exp(log_choices + right * log_right + wrong * log_wrong)
            if total > i * largest_mean:
                largest_mean = total / i
        return min(1.0, stats.binom.sf(v - 1, r, q) + 2 * m * delta * largest_mean)

    low, high = 0.0, 1.0
    while p_value(high) < SIGNIFICANCE:
        high += 1
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) < SIGNIFICANCE else (low, middle)
    return low


def timed(contestant, **arguments) -> tuple[float, float]:
    """Seconds of processor time, and the bound."""
    started = time.process_time()
    bound = contestant(**arguments)
    return time.process_time() - started, bound


def report(setting: str, rival: str, ours: list, theirs: list) -> None:
    """Print times, ratios and bounds from each round's seconds and bound."""
    seconds = [[elapsed for elapsed, _ in rounds] for rounds in (ours, theirs)]
    # Other work on the machine only ever adds time: the fastest round is nearest to the truth.
    best, median = ([of(times) * 1e3 for times in seconds] for of in (min, statistics.median))
    print(
        f"{setting}: {best[0]:.2f} ms against {rival}'s {best[1]:.2f} at best, {median[0]:.2f} "
        f"against {median[1]:.2f} in the median round: {best[1] / best[0]:.3g} and "
        f"{median[1] / median[0]:.3g} times as fast; ε ≥ {ours[0][1]:.6f} and {theirs[0][1]:.6f}, "
        f"{abs(ours[0][1] - theirs[0][1]):.0e} apart"
    )


def every_threshold(rounds: int) -> None:
    """Time all thresholds at each δ, ours and jax-privacy's in turn, after a warm-up."""
    rng = np.random.default_rng(8)
    included = rng.random(N_CANARIES) < 0.5
    scores = SEPARATION * included + rng.standard_normal(N_CANARIES)

    def largest_bound(delta):
        return one_run.best_over_counts(
            scores, included, delta=delta, significance=SIGNIFICANCE, rng=rng
        ).epsilon_lower_bound

    python = rival_python()
    ours, theirs = ({delta: [] for delta in DELTAS} for _ in range(2))
    with tempfile.NamedTemporaryFile(suffix=".npz") as given:
        np.savez(given, scores=scores, included=included, level=SIGNIFICANCE / N_CANARIES)
        given.flush()
        with subprocess.Popen(
            [python, "-c", RIVAL, given.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        ) as rival:
            for _ in range(rounds + 1):
                for delta in DELTAS:
                    ours[delta].append(timed(largest_bound, delta=delta))
                    print(delta, file=rival.stdin)
                    theirs[delta].append(json.loads(rival.stdout.readline()))
    for delta in DELTAS:
        report(f"δ = {delta:g}", "jax-privacy", ours[delta][1:], theirs[delta][1:])


def one_bound(rounds: int) -> None:
    """Time one bound, ours and the paper's in turn, after a warm-up of ours."""

    def bound(**counts):
        return one_run.epsilon_lower_bound(**counts, significance=SIGNIFICANCE)

    bound(**ONE_BOUND)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(timed(bound, **ONE_BOUND))
        theirs.append(timed(appendix_d, **ONE_BOUND))
    setting = "{n_correct} of {n_guesses} right, δ = {delta:g}".format(**ONE_BOUND)
    report(setting, "Appendix D", ours, theirs)


def main(rounds: int) -> None:
    """Print both comparisons; the second, whose rival is slow, with a third of the rounds."""
    print(f"every threshold of {N_CANARIES} canaries, {rounds} rounds")
    every_threshold(rounds)
    few = -(-rounds // 3)
    print(f"one bound, {few} rounds")
    one_bound(few)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
