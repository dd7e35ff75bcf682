"""Study 03, membership inference over the whole universe, every scheme by the same protocol.

Carlini, Feldman and Nasr (arXiv:2209.14987) show that a random subset was compared with dataset
condensation by another, easier test than condensation itself. Here every scheme gets the same
training sets, network and attacks (:mod:`lib.membership`), and the wrong test stands beside it.

All of it is made from what the networks of :mod:`lib.condensation_models` say about every example
of U, and made again by ``verify``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure
from scipy import stats

from lib import condensation_models as networks
from lib import condensation_schemes as schemes
from lib import figures, intervals, membership
from lib.errors import WorkbookError
from lib.results import Figure
from lib.study_tables import in_per_cent, verdict_row
from lib.tables import Field, Table, recipe

UNIVERSE = "all of U"
INSIDE, OUTSIDE = "S and as many of T∖S", "S and as many of U∖T"
SAMPLES = {INSIDE: membership.TRAINING_SET, OUTSIDE: membership.OUTSIDE}
WITH_SUBSET = (schemes.SUBSET, schemes.DM_REAL)  # those that have an S to be told from S′
# Rules that turn scores into guesses. The thresholds of the first three come from other models.
LARGEST = "threshold of the largest advantage"
AT_MOST = {0.001: "FPR of at most 0.1 %", 0.01: "FPR of at most 1 %"}
PEEKED = "peeked: "
RULES_OF_GUESSING = (LARGEST, *AT_MOST.values())
# What the paper reports (arXiv:2209.14987): advantage and what it gives as ±, 0 where it gives
# none; the start of condensation is not said. And test accuracies.
PAPER_SUBSET = 0.016
PAPER_WRONG = (0.928, 0.0531)
PAPER_ADVANTAGES = {
    schemes.SUBSET: (PAPER_SUBSET, 0.0),
    schemes.DM_REAL: (0.0106, 0.0120),
    schemes.DM_NOISE: (0.0106, 0.0120),
    schemes.private_name(8.0): (0.028, 0.0),
    schemes.LITTLE_NOISE: (0.030, 0.008),
}
PAPER_DM_ACCURACY = 0.59
PAPER_ACCURACIES = {schemes.private_name(8.0): 0.61, schemes.LITTLE_NOISE: 0.77}
QUOTED = (
    {"scheme": "DP-SGD (TB20, quoted)", "test_accuracy": 0.64, "theoretical_epsilon": 2.0},
    {"scheme": "without privacy, more than (quoted)", "test_accuracy": 0.96},
)
TOO_WIDE = 0.02  # of an interval, beyond the paper's own: as much as the subset's cap
MANY_TIMES = 5
ROC_GRID = np.geomspace(1e-4, 1, 41)

PARAMETERS, RULES, DATA_RULES = networks.PARAMETERS, networks.RULES, networks.DATA_RULES


# ------------------------------------------------------------- from logits to guesses and counts


def attack_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every attack on every model by every protocol, each guess counted; table ``attacks``."""
    rows = []
    for scheme in tables["models"]["scheme"].unique():
        logits, sets = networks.logits_of(tables, scheme)
        rows += _attack_rows(scheme, UNIVERSE, logits, sets["members"], None)
        if scheme in WITH_SUBSET:
            for protocol, sample in SAMPLES.items():
                rows += _attack_rows(scheme, protocol, logits, sets["subset"], sets[sample])
    return rows


def _attack_rows(scheme: str, protocol: str, logits, members, attacked) -> list[dict]:
    options = {"attacked": attacked, "complementary": attacked is None}
    choices = [
        membership.choose_on_shadows(logits, members, attack=attack, **options)
        for attack in membership.ATTACKS
    ]
    chosen = membership.strongest_on_shadows(choices)
    rows = []
    for i, choice in enumerate(choices):
        scores = membership.attack_scores(
            logits, members, attack=choice.attack, complementary=attacked is None
        )
        guesses = _guesses(scores, members, attacked, choice)
        in_order = [
            curve.n_pairs_in_order
            for curve in membership.curves(scores, members, attacked=attacked)
        ]
        for model in range(len(logits)):
            is_chosen = bool(chosen[model // 2] == i)
            rows += [
                {
                    "scheme": scheme,
                    "protocol": protocol,
                    "pair": model // 2,
                    "side": model % 2,
                    "attack": choice.attack,
                    "rule": rule,
                    "chosen": is_chosen,
                    "shadow_advantage": float(choice.advantage[model // 2]),
                    **_counts_row({name: int(counts[name][model]) for name in counts}),
                    "n_pairs_in_order": float(in_order[model]),
                    "auc": float(
                        membership.area(
                            n_pairs_in_order=in_order[model],
                            n_members=counts["n_members"][model],
                            n_others=counts["n_others"][model],
                        )
                    ),
                }
                for rule, counts in guesses.items()
                # Of the attacks not taken the customary figure is enough.
                if rule == LARGEST or (is_chosen and attacked is None)
            ]
    return rows


def _guesses(scores, members, attacked, choice: membership.Choice) -> dict[str, dict]:
    """Counts of all models by rule, honest ones first, then those read off the target's curve."""
    honest = [choice.threshold, *choice.low_thresholds.T]
    counts = [
        membership.counts_at(scores, members, thresholds, attacked=attacked)
        for thresholds in honest
    ]
    by_rule = {rule: _by_name(count) for rule, count in zip(RULES_OF_GUESSING, counts, strict=True)}
    curves = membership.curves(scores, members, attacked=attacked)
    at = [
        [curve.index_of_largest_advantage(), *curve.index_at_most(np.array(list(AT_MOST)))]
        for curve in curves
    ]
    for j, rule in enumerate(RULES_OF_GUESSING):
        by_rule[PEEKED + rule] = {
            "true_positives": [c.true_positives[i[j]] for c, i in zip(curves, at, strict=True)],
            "n_members": [curve.n_members for curve in curves],
            "false_positives": [c.false_positives[i[j]] for c, i in zip(curves, at, strict=True)],
            "n_others": [curve.n_others for curve in curves],
        }
    return by_rule


COUNTS = ("true_positives", "n_members", "false_positives", "n_others")


def _by_name(counts: membership.Counts) -> dict:
    return {name: getattr(counts, name) for name in COUNTS}


def _counts_row(counts: dict) -> dict:
    return counts | {"advantage": float(membership.advantage(**counts))}


def chosen_attacks(tables: dict[str, pd.DataFrame], scheme: str) -> list[str]:
    """The attack over U that each pair's shadows chose."""
    attacks = tables["attacks"]
    rows = attacks[
        (attacks["scheme"] == scheme)
        & (attacks["protocol"] == UNIVERSE)
        & (attacks["rule"] == LARGEST)
        & (attacks["side"] == 0)
        & attacks["chosen"]
    ]
    return rows.sort_values("pair")["attack"].to_list()


def chosen_scores(tables: dict[str, pd.DataFrame], scheme: str, logits, members) -> np.ndarray:
    """Scores over U of the attack that each pair's shadows chose, (models, examples)."""
    chosen = chosen_attacks(tables, scheme)
    names = list(dict.fromkeys(chosen))
    scores = [membership.attack_scores(logits, members, attack=attack) for attack in names]
    return membership.of_chosen(scores, np.array([names.index(attack) for attack in chosen]))


# ------------------------------------------------------------------------- the paper's table


def advantages(tables: dict, scheme: str, protocol: str = UNIVERSE) -> tuple:
    """Advantages of a scheme's models by the chosen attacks, and what the jackknife needs.

    Returns:
        (models,) advantages, and (pairs,) the shadows' advantage with each pair left out.
    """
    attacks = tables["attacks"]
    rows = attacks[
        (attacks["scheme"] == scheme)
        & (attacks["protocol"] == protocol)
        & (attacks["rule"] == LARGEST)
        & attacks["chosen"]
    ].sort_values(["pair", "side"])
    return rows["advantage"].to_numpy(), rows["shadow_advantage"].to_numpy()[::2]


def accuracies(tables: dict, scheme: str) -> np.ndarray:
    """Test accuracies of a scheme's models, (models,)."""
    models = tables["models"]
    rows = models[models["scheme"] == scheme].sort_values(["pair", "side"])
    return rows["test_accuracy"].to_numpy()


def scheme_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The paper's table: accuracy and advantage of each scheme with intervals, caps and ε."""
    rows = []
    for scheme in tables["models"]["scheme"].unique():
        accuracy = interval_columns("accuracy", accuracies(tables, scheme))
        for protocol in (UNIVERSE, *(SAMPLES if scheme in WITH_SUBSET else ())):
            values, without = advantages(tables, scheme, protocol)
            rows.append(
                {"scheme": scheme, "protocol": protocol, "source": "here"}
                | {"n_pairs": len(without), "test_accuracy": accuracy["accuracy"]}
                | {name: accuracy[name] for name in ("accuracy_low", "accuracy_high")}
                | interval_columns("advantage", values, without)
                | _allowed(tables, scheme, protocol)
            )
    nothing = dict.fromkeys(rows[0]) | {"source": "quoted", "protocol": "–"}
    return rows + [nothing | quoted for quoted in QUOTED]


def interval_columns(name: str, values: np.ndarray, without: np.ndarray | None = None) -> dict:
    """Mean over pairs, its standard error, and the ends of its 95 % interval."""
    mean, _, high = map(float, membership.pair_interval(values, without=without))
    n_pairs = len(values) // 2
    error = (high - mean) / float(stats.t.ppf(0.975, n_pairs - 1))
    ends = {"mean": mean, "standard_error": error, "n_values": n_pairs}
    return {
        name: mean,
        f"{name}_error": error,
        f"{name}_low": float(intervals.t_lower(**ends)),
        f"{name}_high": float(intervals.t_upper(**ends)),
    }


def _allowed(tables: dict, scheme: str, protocol: str) -> dict:
    """What theory allows: the advantage's cap, and ε at δ."""
    nothing = dict.fromkeys(("cap", "theoretical_epsilon", "delta"))
    if protocol != UNIVERSE:
        return nothing
    if scheme == schemes.SUBSET:
        sets = tables["training_sets"]
        cap = membership.subset_cap(n_subset=sets["n_subset"], n_members=sets["n_members"]).mean()
        return nothing | {"cap": float(cap)}
    of_scheme = tables["mechanisms"]["scheme"] == scheme
    if not of_scheme.any():
        return nothing
    row = tables["mechanisms"][of_scheme].iloc[0]
    return {
        "cap": membership.privacy_cap(delta_at_zero=row["delta_at_zero"]),
        "theoretical_epsilon": float(row["theoretical_epsilon"]),
        "delta": float(row["delta"]),
    }


def roc_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Mean ROC curve of each scheme with its interval at each point; table ``roc``."""
    rows = []
    for scheme in tables["models"]["scheme"].unique():
        logits, sets = networks.logits_of(tables, scheme)
        scores = chosen_scores(tables, scheme, logits, sets["members"])
        band = membership.roc_band(scores, sets["members"], false_positive_rates=ROC_GRID)
        rows += [
            {
                "scheme": scheme,
                "false_positive_rate": float(limit),
                "true_positive_rate": float(mean),
                "low": float(low),
                "high": float(high),
            }
            for limit, mean, low, high in zip(
                band.false_positive_rates,
                band.true_positive_rate,
                band.lower,
                band.upper,
                strict=True,
            )
        ]
    return rows


# ------------------------------------------------------------------------------------ tables


COUNT_FIELDS = (
    Field("true_positives", "integer", "", "members called members", minimum=0),
    Field("n_members", "integer", "", "members that were asked about", minimum=1),
    Field("false_positives", "integer", "", "others called members", minimum=0),
    Field("n_others", "integer", "", "others that were asked about", minimum=1),
)


def interval_fields(name: str, meaning: str, n_values: str, *, required: bool = True) -> tuple:
    """Columns of :func:`interval_columns`, the ends with their recipes."""
    ends = {"mean": name, "standard_error": f"{name}_error", "n_values": n_values}
    return (
        Field(name, "number", "", f"{meaning}, mean over pairs", required=required),
        Field(f"{name}_error", "number", "", "standard error of the mean", required, 0),
        *(
            Field(
                f"{name}_{end}",
                "number",
                "",
                f"{words} end of the 95 % interval over pairs",
                required=required,
                recipe=recipe(f"intervals.t_{function}", **ends),
            )
            for end, words, function in (("low", "lower", "lower"), ("high", "upper", "upper"))
        ),
    )


TABLES = networks.TABLES | {
    "attacks": Table(
        fields=(
            networks.SCHEME,
            Field("protocol", "string", "", "which examples are asked about"),
            networks.PAIR,
            networks.SIDE,
            Field("attack", "string", "", "form of LiRA"),
            Field("rule", "string", "", "what settles the threshold"),
            Field("chosen", "boolean", "", "whether the pair's shadows found it the strongest"),
            Field("shadow_advantage", "number", "", "advantage on the pair's shadows, peeked"),
            *COUNT_FIELDS,
            Field(
                "advantage",
                "number",
                "",
                "TPR − FPR",
                minimum=-1,
                maximum=1,
                recipe=recipe("membership.advantage", *COUNTS),
            ),
            Field("n_pairs_in_order", "number", "", "member above other; ties half", minimum=0),
            Field(
                "auc",
                "number",
                "",
                "area under the ROC curve",
                minimum=0,
                maximum=1,
                recipe=recipe("membership.area", "n_pairs_in_order", "n_members", "n_others"),
            ),
        ),
        key=("scheme", "protocol", "pair", "side", "attack", "rule"),
        meaning="one attack on one model by one protocol, guesses counted by one rule",
        derived="condensation_membership.attack_rows",
    ),
    "schemes": Table(
        fields=(
            networks.SCHEME,
            Field("protocol", "string", "", "which examples are asked about"),
            Field("source", "string", "", "here, or quoted from the paper"),
            Field("n_pairs", "integer", "", "pairs of models", required=False, minimum=2),
            Field("test_accuracy", "number", "", "mean over models", minimum=0, maximum=1),
            *(
                Field(f"accuracy_{end}", "number", "", "95 % interval over pairs", required=False)
                for end in ("low", "high")
            ),
            *interval_fields(
                "advantage", "advantage of the chosen attack", "n_pairs", required=False
            ),
            Field("cap", "number", "", "largest expected advantage", required=False, minimum=0),
            Field("theoretical_epsilon", "number", "nats", "ε at δ", required=False, minimum=0),
            Field("delta", "number", "", "δ", required=False, minimum=0, maximum=1),
        ),
        key=("scheme", "protocol"),
        meaning="one scheme by one protocol: the paper's Table 1",
        claims=({"attack": "advantage_low", "bound": "cap"},),
        derived="condensation_membership.scheme_rows",
    ),
    "roc": Table(
        fields=(
            networks.SCHEME,
            Field("false_positive_rate", "number", "", "limit of the FPR", minimum=0, maximum=1),
            *(
                Field(name, "number", "", meaning, minimum=0, maximum=1)
                for name, meaning in (
                    ("true_positive_rate", "TPR at most there, mean over pairs"),
                    ("low", "lower end of its 95 % interval over pairs"),
                    ("high", "upper end"),
                )
            ),
        ),
        key=("scheme", "false_positive_rate"),
        meaning="one point of a scheme's mean ROC curve",
        derived="condensation_membership.roc_rows",
    ),
}


# ---------------------------------------------------------------------------------- summaries


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The paper's Table 1 for a reader, in per cent."""
    rows = tables["schemes"]
    rows = rows[rows["protocol"].isin([UNIVERSE, "–"])]
    claims = tables["claims"].set_index("scheme")["epsilon_lower_bound"]
    return pd.DataFrame(
        {
            "scheme": rows["scheme"],
            "pairs": rows["n_pairs"].astype("Int64"),
            "test accuracy, %": 100 * rows["test_accuracy"],
            "advantage, %": 100 * rows["advantage"],
            "± (95 %)": 100 * (rows["advantage_high"] - rows["advantage"]),
            "cap, %": 100 * rows["cap"],
            "theoretical ε": rows["theoretical_epsilon"],
            "empirical ε, at least": rows["scheme"].map(claims),
        }
    )


def tuning_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Accuracy of the random subset by setting, in per cent, with its interval over sets."""
    rows = []
    for (epochs, rate), of_setting in tables["tuning"].groupby(["epochs", "learning_rate"]):
        mean, _, high = tuned_interval(of_setting["accuracy"])
        rows.append(
            {"epochs": epochs, "learning rate": rate, "training sets": len(of_setting)}
            | {"accuracy on U∖T, %": 100 * mean, "± (95 %)": 100 * (high - mean)}
        )
    return pd.DataFrame(rows)


def tuned_interval(accuracy) -> tuple[float, float, float]:
    """Mean over independent training sets, and the ends of its 95 % interval."""
    ends = {
        "mean": float(np.mean(accuracy)),
        "standard_error": float(stats.sem(accuracy)),
        "n_values": len(accuracy),
    }
    return ends["mean"], float(intervals.t_lower(**ends)), float(intervals.t_upper(**ends))


def wrong_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The same models by the right and the wrong protocols, advantages in per cent."""
    rows = tables["schemes"]
    rows = rows[rows["scheme"].isin(WITH_SUBSET)]
    return pd.DataFrame(
        {
            "scheme": rows["scheme"],
            "asked about": rows["protocol"],
            "advantage, %": 100 * rows["advantage"],
            "± (95 %)": 100 * (rows["advantage_high"] - rows["advantage"]),
        }
    )


def attack_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean advantage of every attack over U, in per cent, and how many pairs chose it."""
    attacks = tables["attacks"]
    rows = attacks[(attacks["protocol"] == UNIVERSE) & (attacks["rule"] == LARGEST)]
    groups = rows.groupby(["scheme", "attack"], sort=False)
    means = (100 * groups["advantage"].mean()).unstack("attack")
    counts = groups["chosen"].sum().unstack("attack") // 2
    chosen = counts.apply(
        lambda row: ", ".join(f"{name} ({n})" for name, n in row.items() if n), axis=1
    )
    return means[list(membership.ATTACKS)].assign(chosen=chosen).reset_index()


def rate_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """TPR at low FPR, thresholds from the shadows and peeked ones, with realised rates."""
    attacks = tables["attacks"]
    rows = attacks[(attacks["protocol"] == UNIVERSE) & attacks["chosen"]]
    totals = rows.groupby(["scheme", "rule"], sort=False)[list(COUNTS)].sum().reset_index()
    return pd.DataFrame(
        {
            "scheme": totals["scheme"],
            "threshold": totals["rule"],
            "TPR, %": 100 * totals["true_positives"] / totals["n_members"],
            "realised FPR, %": 100 * totals["false_positives"] / totals["n_others"],
            "true positives": totals["true_positives"],
            "false positives": totals["false_positives"],
            "members": totals["n_members"],
            "others": totals["n_others"],
        }
    )


def peeked(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """What a peeked threshold makes of each scheme, and of pure noise, in per cent."""
    attacks = tables["attacks"]
    rows = attacks[(attacks["protocol"] == UNIVERSE) & attacks["chosen"]]
    means = rows.groupby(["scheme", "rule"], sort=False)["advantage"].mean().unstack("rule")
    n = int(tables["training_sets"]["n_universe"].iloc[0] / 2)
    noise = membership.peeked_advantage_of_noise(n_members=n, n_others=n)
    return pd.DataFrame(
        {
            "scheme": [*means.index, f"pure noise, {2 * n:,} examples"],
            "threshold from other models": [*(100 * means[LARGEST]), 0.0],
            "threshold peeked": [*(100 * means[PEEKED + LARGEST]), 100 * noise],
        }
    )


# ---------------------------------------------------------------------------------- verdicts


def difference(tables: dict, first: str, second: str, what: str) -> tuple[float, float, float]:
    """Paired difference of two schemes over pairs, with its 95 % interval.

    Args:
        tables: of the study.
        first, second: schemes; the difference is the first's less the second's.
        what: ``"advantage"`` or ``"accuracy"``.
    """
    if what == "accuracy":
        values, without = accuracies(tables, first) - accuracies(tables, second), None
    else:
        (one, its), (other, others) = (advantages(tables, scheme) for scheme in (first, second))
        values, without = one - other, its - others
    return tuple(map(float, membership.pair_interval(values, without=without)))


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The note's claims about membership inference."""
    found = list(tables["mechanisms"]["scheme"])
    rows = [
        *(
            _advantage_verdict(tables, scheme)
            for scheme in tables["models"]["scheme"].unique()
            if scheme in PAPER_ADVANTAGES
        ),
        _cap_verdict(tables),
        *(_wrong_verdict(tables, *pair) for pair in _wrong_pairs()),
        *_compared(tables, schemes.SUBSET, (schemes.DM_REAL, schemes.DM_NOISE)),
    ]
    for private in found:
        rows += _compared(tables, private, (schemes.DM_REAL, schemes.DM_NOISE))
    return [*rows, _tuning_verdict(tables)]


def _tuning_verdict(tables: dict) -> dict:
    """How far the setting in use is from the best of those tried on the subset."""
    used = _used_setting(tables)
    by_setting = {
        setting: rows.sort_values("pair")["accuracy"].to_numpy()
        for setting, rows in tables["tuning"].groupby(["epochs", "learning_rate"])
    }
    best = max(by_setting, key=lambda setting: by_setting[setting].mean())
    interval = tuned_interval(by_setting[best] - by_setting[used])
    return verdict_row(
        "accuracy (%) on the subset: best setting tried less the one in use",
        "–",
        in_per_cent(interval),
        "no better setting shown" if interval[1] <= 0 else "a better setting was tried",
        f"{best[0]} epochs at {best[1]:g} against {used[0]} at {used[1]:g}, on images of U∖T of "
        f"{len(by_setting[used])} training sets; the best is picked on these, which favours it",
    )


def _used_setting(tables: dict) -> tuple[int, float]:
    """Epochs and learning rate of the networks of subset and condensed images."""
    row = tables["setting"].iloc[0]
    return int(row["epochs"]), float(row["learning_rate"])


def _row(tables: dict, scheme: str, protocol: str) -> pd.Series:
    rows = tables["schemes"]
    return rows[(rows["scheme"] == scheme) & (rows["protocol"] == protocol)].iloc[0]


def _advantage(row: pd.Series) -> tuple[float, float, float]:
    return tuple(float(row[name]) for name in ("advantage", "advantage_low", "advantage_high"))


def _advantage_verdict(tables: dict, scheme: str) -> dict:
    row = _row(tables, scheme, UNIVERSE)
    interval = _advantage(row)
    paper, error = PAPER_ADVANTAGES[scheme]
    plus_minus = f" ± {100 * error:.2f}" if error else ""
    n = tables["training_sets"]["n_universe"].iloc[0]
    return verdict_row(
        f"advantage (%) against {scheme}, asked about all of U",
        "1.6, not 92.8" if scheme == schemes.SUBSET else f"{100 * paper:.2f}{plus_minus}",
        in_per_cent(interval),
        against_paper(interval, (paper - error, paper + error)),
        f"strongest LiRA on the shadows; {row['n_pairs']:.0f} pairs of models, {n:,} images",
    )


def against_paper(interval: tuple[float, float, float], paper: tuple[float, float]) -> str:
    """Verdict on an advantage against the paper's interval.

    Args:
        interval: ours and its ends.
        paper: the ends of the paper's.

    Raises:
        WorkbookError: for an end that is not finite, of which nothing follows.
    """
    if not np.isfinite(interval).all():
        raise WorkbookError(f"advantage {interval}; allowed: finite numbers")
    if interval[1] > paper[1]:
        return "differs: more is given away here"
    if interval[2] < paper[0]:
        return "differs: less is given away here"
    # An interval that has room for much more or less than the paper's agrees with anything.
    wide = interval[2] - interval[1] > TOO_WIDE + paper[1] - paper[0]
    return "not distinguishable" if wide else "agrees"


def _cap_verdict(tables: dict) -> dict:
    row = _row(tables, schemes.SUBSET, UNIVERSE)
    interval = _advantage(row)
    return verdict_row(
        "advantage (%) against a random subset, less its cap |S|/|T|",
        "at most 0",
        in_per_cent(tuple(value - float(row["cap"]) for value in interval)),
        _cap_words(interval, float(row["cap"])),
        f"the cap is {100 * row['cap']:.2f} %, |S| being 1 % of U",
    )


def _cap_words(interval: tuple[float, float, float], cap: float) -> str:
    if interval[1] > cap:
        return "above the cap"
    # Twice the cap within the interval, and the cap has not been tried.
    return "not distinguishable" if interval[2] > 2 * cap else "as allowed"


def _wrong_pairs():
    papers = {
        (schemes.SUBSET, INSIDE): "92.8 ± 5.3",
        (schemes.DM_REAL, INSIDE): "comparable to the subset's",
    }
    return [
        (scheme, protocol, papers.get((scheme, protocol), "not tried"))
        for scheme in WITH_SUBSET
        for protocol in SAMPLES
    ]


def _wrong_verdict(tables: dict, scheme: str, protocol: str, paper: str) -> dict:
    interval = _advantage(_row(tables, scheme, protocol))
    right = _advantage(_row(tables, scheme, UNIVERSE))
    if scheme == schemes.SUBSET and protocol == INSIDE:
        low, high = PAPER_WRONG[0] - PAPER_WRONG[1], PAPER_WRONG[0] + PAPER_WRONG[1]
        verdict = against_paper(interval, (low, high))
    else:
        verdict = "not distinguishable"
        if interval[1] > right[2]:
            verdict = "above the protocol's"
        if interval[1] > MANY_TIMES * max(right[2], 0):
            verdict = f"more than {MANY_TIMES} times the protocol's"
        elif interval[2] < right[1]:
            verdict = "below the protocol's"
    return verdict_row(
        f"advantage (%) by the wrong protocol, {scheme}: {protocol}",
        paper,
        in_per_cent(interval),
        verdict,
        "the same models and attacks, asked about another set: a figure not to be compared with "
        "one over U",
    )


def _compared(tables: dict, first: str, others: tuple[str, ...]) -> list[dict]:
    """Accuracy and advantage of condensation against another scheme, paired."""
    rows = []
    for other in others:
        for what, noun in (("accuracy", "accuracy"), ("advantage", "given away")):
            interval = difference(tables, other, first, what)
            paper, contradicted = _paper_comparison(first, what)
            verdict = "not distinguishable"
            if interval[1] > 0 or interval[2] < 0:
                word = "more" if interval[1] > 0 else "less"
                differs = "differs: " if word in contradicted else ""
                verdict = f"{differs}{word} {noun} with {other}"
            rows.append(
                verdict_row(
                    f"{what} (%): {other} less {first}",
                    paper,
                    in_per_cent(interval),
                    verdict,
                    "paired over the same training sets and starts",
                )
            )
    return rows


def _paper_comparison(first: str, what: str) -> tuple[str, tuple[str, ...]]:
    """What the paper finds of condensation against ``first``, and the words that contradict it."""
    if first == schemes.SUBSET:
        if what == "advantage":
            return "no significant difference", ("more", "less")
        return "–", ()
    if first not in PAPER_ACCURACIES:
        return "–", ()
    if what == "advantage":
        return "condensation is not better", ("less",)
    ours, theirs = 100 * PAPER_DM_ACCURACY, 100 * PAPER_ACCURACIES[first]
    return f"{ours:.0f} against {theirs:.0f}", ("more",)


# ----------------------------------------------------------------------------------- figures


def draw_advantages(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Advantages with intervals: all schemes over U left, the wrong protocol right."""
    rows = tables["schemes"][tables["schemes"]["source"] == "here"]
    right, wrong = rows[rows["protocol"] == UNIVERSE], rows[rows["scheme"].isin(WITH_SUBSET)]
    figure, (left_axes, right_axes) = figures.new_figure(1, 2, height=3.6)
    _draw_intervals(left_axes, right, list(right["scheme"]))
    places = range(len(right))
    caps = right["cap"].to_numpy(dtype=float)
    shown = caps < 0.2  # a cap far away would press the rest together
    left_axes.plot(
        100 * caps[shown],
        np.array(places)[shown],
        linestyle="none",
        marker="|",
        markersize=14,
        color=figures.COLOURS[1],
        label="cap of the expected advantage",
    )
    paper = {i: PAPER_ADVANTAGES.get(scheme) for i, scheme in enumerate(right["scheme"])}
    paper = {i: 100 * value[0] for i, value in paper.items() if value is not None}
    figures.paper_value(left_axes, list(paper.values()), list(paper))
    left_axes.axvline(0, color="grey", linewidth=1)
    left_axes.set_title("asked about all of U")
    labels = [f"{s}:\n{p}" for s, p in zip(wrong["scheme"], wrong["protocol"], strict=True)]
    _draw_intervals(right_axes, wrong, labels)
    figures.paper_value(right_axes, [100 * PAPER_WRONG[0]], [1])
    right_axes.set_xlim(-5, 105)
    right_axes.set_title("asked about other sets")
    figure.legend(*left_axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_intervals(ax, rows: pd.DataFrame, labels: list[str]) -> None:
    mean = 100 * rows["advantage"].to_numpy()
    ends = [mean - 100 * rows["advantage_low"], 100 * rows["advantage_high"] - mean]
    ax.errorbar(
        mean,
        range(len(rows)),
        xerr=np.array(ends),
        fmt="o",
        color=figures.COLOURS[0],
        capsize=3,
        label="here, 95 % interval",
    )
    ax.set_yticks(range(len(rows)), labels)
    ax.invert_yaxis()
    ax.set_xlabel("advantage TPR − FPR (%)")


def draw_roc(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """ROC curves on logarithmic axes, with bands; the diagonal is guessing."""
    roc = tables["roc"]
    n_others = tables["attacks"]["n_others"][tables["attacks"]["protocol"] == UNIVERSE].min()
    lowest = 1 / n_others
    names = list(roc["scheme"].unique())
    groups = [names[:4], names[4:]]
    figure, axes = figures.new_figure(1, 2, height=3.8, share_y=True)
    for ax, group in zip(axes, groups, strict=True):
        for i, scheme in enumerate(group):
            rows = roc[(roc["scheme"] == scheme) & (roc["false_positive_rate"] >= lowest)]
            x = rows["false_positive_rate"]
            floor = lowest / 3
            figures.band(
                ax, x, rows["low"].clip(lower=floor), rows["high"].clip(lower=floor), index=i
            )
            style = figures.series(i) | {"marker": ""}
            ax.plot(x, rows["true_positive_rate"].clip(lower=floor), label=scheme, **style)
        ax.plot([lowest, 1], [lowest, 1], color="grey", linewidth=1, label="guessing")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("false-positive rate, at most")
        ax.legend(loc="lower right")
    axes[0].set_ylabel("true-positive rate")
    return figure


FIGURES = {
    "advantages": Figure(
        draw_advantages,
        tables=("schemes",),
        title="Membership advantage of every scheme, by the right and by the wrong protocol",
        alternative_text=(
            "Two panels of points with intervals. Left: the advantage over the whole universe of "
            "each scheme, with caps as bars and the paper's values as stars. Right: random subset "
            "and condensation from real images, asked about the universe and about two small sets, "
            "where the advantage is many times larger."
        ),
    ),
    "roc": Figure(
        draw_roc,
        tables=("roc", "attacks"),
        title="ROC curves of the attacks over the whole universe",
        alternative_text=(
            "True-positive rate against false-positive rate on logarithmic axes, with bands; left "
            "no defence, random subset and condensation, right private training; a grey diagonal "
            "for guessing."
        ),
    ),
}
