"""Study 03, what an empirical ε is not: one point of one curve, and an average.

The criticised work reads the largest ln(TPR/FPR) off a ROC curve and calls it a guarantee. It is
neither an upper nor a lower bound (arXiv:2209.14987). Here it stands next to what the same scores
allow to claim, and averages stand next to groups that were chosen on other models.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import condensation_membership as over_universe
from lib import condensation_models as networks
from lib import condensation_schemes as schemes
from lib import figures, membership
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import (
    BOUND_BELOW_TRUTH,
    COUNT_FIELDS,
    DELTA,
    LOWER_BOUND,
    SIGNIFICANCE,
    in_per_cent,
    verdict_row,
)
from lib.tables import Field, Table, recipe

EVERYBODY, CLASS, SHARE = "everybody", "most exposed class", "most exposed share"
# Shares of a population that are exposed, in the exact example; a tenth is the paper's.
HIDDEN = (10, 100, 500)
POPULATION = 1000
PAPER_AVERAGE = 0.2
FEWEST = 50  # examples of the most exposed share: all in or all out once in 10¹⁵ models
CRITICISED = 2.30  # the ε̂ of condensation that was published as a guarantee

PARAMETERS = {
    "claim_n_guesses": Parameter(
        "int", "guesses of 'in', and as many of 'out', of the claim from one model", minimum=1
    ),
    "exposed_share": Parameter(
        "float", "share of the examples tried as the most exposed", above=0, maximum=1
    ),
}


def check_share(p) -> None:
    """Refuse so few examples that a model might have all of them, or none, in its T.

    Raises:
        WorkbookError: naming the parameter.
    """
    if p.exposed_share * p.n_universe < FEWEST:
        raise WorkbookError(
            f"exposed_share = {p.exposed_share:g}; allowed: at least {FEWEST / p.n_universe:g}, "
            f"which is {FEWEST} examples of n_universe = {p.n_universe}"
        )


def check_claim(p) -> None:
    """Refuse more guesses than examples.

    Raises:
        WorkbookError: naming the parameter.
    """
    if 2 * p.claim_n_guesses > p.n_universe:
        raise WorkbookError(
            f"claim_n_guesses = {p.claim_n_guesses}; allowed: at most half of n_universe, which is "
            f"{p.n_universe}"
        )


RULES = (check_claim, check_share)


# ------------------------------------------------------------------------------------- cells


def plan(cell: dict, streams, dataset: None) -> list[dict]:
    """What is settled before any score is seen."""
    return [cell]


def plan_cells(session) -> list[dict]:
    """One cell."""
    p = session.p
    return [
        {
            "n_positive": p.claim_n_guesses,
            "n_negative": p.claim_n_guesses,
            "delta": p.delta,
            "significance": p.significance,
            "exposed_share": p.exposed_share,
        }
    ]


def hidden(cell: dict, streams, dataset: None) -> list[dict]:
    """A population of which a part is recognised without error, and of the rest nobody."""
    group = membership.hidden_group(n_members=cell["n_members"], n_exposed=cell["n_exposed"])
    rates = {"true_positive_rate": group.true_positive_rate}
    rates["false_positive_rate"] = group.false_positive_rate
    # The group's own is infinite, which a table cannot hold.
    return [cell | rates | {"epsilon_average": group.epsilon_average}]


def hidden_cells(session) -> list[dict]:
    """One cell for each size of the exposed part."""
    return [{"n_members": POPULATION, "n_exposed": n} for n in HIDDEN]


# ------------------------------------------------------------------------- from scores to claims


def claim_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """For the first model of each scheme, named beforehand, ε̂ and what may be claimed."""
    settled = tables["claim_plan"].iloc[0]
    rows = []
    for scheme in tables["models"]["scheme"].unique():
        logits, sets = networks.logits_of(tables, scheme)
        scores = over_universe.chosen_scores(tables, scheme, logits, sets["members"])
        curve = membership.roc(scores[0], sets["members"][0])
        ratio, true_positives, false_positives = membership.criticised_epsilon(curve)
        audit = membership.claim_from_one_model(
            scores[0],
            sets["members"][0],
            n_positive=int(settled["n_positive"]),
            n_negative=int(settled["n_negative"]),
            delta=float(settled["delta"]),
            significance=float(settled["significance"]),
            rng=np.random.default_rng(0),  # for ties alone
        )
        n_pairs = len(logits) // 2
        rows.append(
            {"scheme": scheme, "theoretical_epsilon": _theoretical(tables, scheme)}
            | {"criticised_epsilon": ratio}
            | {"true_positives": true_positives, "n_members": curve.n_members}
            | {"false_positives": false_positives, "n_others": curve.n_others}
            | {"delta": audit.delta}
            | {field.name: getattr(audit, field.name) for field in COUNT_FIELDS}
            | {"epsilon_lower_bound": audit.epsilon_lower_bound}
            | {
                "largest_from_runs": membership.largest_epsilon_from_runs(
                    n_first=n_pairs,
                    n_second=n_pairs,
                    delta=audit.delta,
                    significance=audit.significance,
                )
            }
        )
    return rows


def _theoretical(tables: dict, scheme: str) -> float | None:
    rows = tables["mechanisms"][tables["mechanisms"]["scheme"] == scheme]
    return float(rows["theoretical_epsilon"].iloc[0]) if len(rows) else None


def exposed_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Everybody, and groups chosen on the first half of the pairs, measured on the second.

    The choosing pairs are no shadows of the others: an example that is chosen for its gap there
    has, by that choice alone, shadows with a gap, which make noise look like an attack.
    """
    labels = tables["examples"].sort_values("example")["label"].to_numpy()
    share = float(tables["claim_plan"]["exposed_share"].iloc[0])
    rows = []
    for scheme in tables["models"]["scheme"].unique():
        logits, sets = networks.logits_of(tables, scheme)
        rows += [
            {"scheme": scheme} | row
            for row in exposed_groups(logits, sets["members"], labels, share=share)
        ]
    return rows


def exposed_groups(logits, members, labels, *, share: float) -> list[dict]:
    """Groups of one scheme; rows of table ``exposed`` but for the scheme.

    Args:
        logits, members: (models, examples), models in complementary pairs, at least four pairs.
        labels: (examples,) classes.
        share: of the examples, tried as the most exposed.
    """
    first, second = map(membership.rows_of, membership.halves(len(logits) // 2))
    label = membership.most_exposed_class(logits[first], members[first], labels)
    groups = {
        EVERYBODY: np.ones(len(labels), dtype=bool),
        CLASS: labels == label,
        SHARE: membership.most_exposed_share(logits[first], members[first], share=share),
    }
    logits, members = logits[second], members[second]
    choices = [
        membership.choose_on_shadows(logits, members, attack=name) for name in membership.ATTACKS
    ]
    chosen = membership.strongest_on_shadows(choices)
    rows = []
    for name, group in groups.items():
        counts, without = _attacked(logits[:, group], members[:, group], chosen)
        totals = {n: int(getattr(counts, n).sum()) for n in over_universe.COUNTS}
        ratio = float(membership.log_ratio(**totals))
        rows.append(
            {"group": name, "label": label if name == CLASS else None}
            | {"n_examples": int(group.sum()), "n_pairs": len(chosen)}
            | totals
            | {"log_ratio": ratio if np.isfinite(ratio) else None}
            | over_universe.interval_columns("advantage", counts.advantage, without)
        )
    return rows


def _attacked(logits, members, chosen) -> tuple[membership.Counts, np.ndarray]:
    """Guesses by each pair's attack, thresholds from its shadows; and those shadows' advantages."""
    scores, choices = (
        [how(logits, members, attack=name) for name in membership.ATTACKS]
        for how in (membership.attack_scores, membership.choose_on_shadows)
    )
    pairs = np.arange(len(chosen))
    threshold, without = (
        np.array([getattr(choice, name) for choice in choices])[chosen, pairs]
        for name in ("threshold", "advantage")
    )
    scores = membership.of_chosen(scores, chosen)
    return membership.counts_at(scores, members, threshold), without


# ------------------------------------------------------------------------------------ tables


TABLES = {
    "claim_plan": Table(
        fields=(
            Field("n_positive", "integer", "", "guesses of 'in'", minimum=0),
            Field("n_negative", "integer", "", "guesses of 'out'", minimum=0),
            DELTA,
            SIGNIFICANCE,
            Field("exposed_share", "number", "", "share tried as the most exposed", minimum=0),
        ),
        key=("n_positive",),
        meaning="what was settled before any score was seen",
    ),
    "hidden_groups": Table(
        fields=(
            Field("n_members", "integer", "", "members, and as many others", minimum=1),
            Field("n_exposed", "integer", "", "of either, recognised without error", minimum=1),
            Field("true_positive_rate", "number", "", "over everybody", minimum=0, maximum=1),
            Field("false_positive_rate", "number", "", "over everybody", minimum=0, maximum=1),
            Field("epsilon_average", "number", "nats", "ln(TPR/FPR) over everybody", minimum=0),
        ),
        key=("n_members", "n_exposed"),
        meaning="an exact example: the average over a population, a part of which is exposed",
    ),
    "claims": Table(
        fields=(
            networks.SCHEME,
            Field("theoretical_epsilon", "number", "nats", "ε at δ", required=False, minimum=0),
            Field(
                "criticised_epsilon",
                "number",
                "nats",
                "largest ln(TPR/FPR) with a false positive at least: no bound on anything",
                recipe=recipe("membership.log_ratio", *over_universe.COUNTS),
            ),
            *over_universe.COUNT_FIELDS,
            DELTA,
            *COUNT_FIELDS,
            LOWER_BOUND,
            Field(
                "largest_from_runs",
                "number",
                "nats",
                "what Clopper and Pearson's limits over the independent models could give at most",
                minimum=0,
            ),
        ),
        key=("scheme",),
        meaning="one model of a scheme, named beforehand: ε̂, and the claim that holds",
        claims=BOUND_BELOW_TRUTH,
        derived="condensation_epsilon.claim_rows",
    ),
    "exposed": Table(
        fields=(
            networks.SCHEME,
            Field("group", "string", "", "who is asked about"),
            Field("label", "integer", "", "class of the group", required=False, minimum=0),
            Field("n_examples", "integer", "", "examples in the group", minimum=1),
            Field("n_pairs", "integer", "", "pairs it is measured on", minimum=2),
            *over_universe.COUNT_FIELDS,
            Field("log_ratio", "number", "nats", "ln(TPR/FPR); none if infinite", required=False),
            *over_universe.interval_fields("advantage", "advantage", "n_pairs"),
        ),
        key=("scheme", "group"),
        meaning="one group, chosen on half of the pairs and measured on the others",
        derived="condensation_epsilon.exposed_rows",
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """ε̂ beside what may be claimed."""
    rows = tables["claims"]
    return pd.DataFrame(
        {
            "scheme": rows["scheme"],
            "ε̂, no bound": rows["criticised_epsilon"],
            "its true positives": rows["true_positives"],
            "its false positives": rows["false_positives"],
            "right guesses": rows["n_correct"],
            "of": rows["n_guesses"],
            "ε at least": rows["epsilon_lower_bound"],
            "theoretical ε": rows["theoretical_epsilon"],
        }
    )


def exposed_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Groups beside the average, advantages in per cent."""
    rows = tables["exposed"]
    return pd.DataFrame(
        {
            "scheme": rows["scheme"],
            "group": rows["group"],
            "examples": rows["n_examples"],
            "advantage, %": 100 * rows["advantage"],
            "± (95 %)": 100 * (rows["advantage_high"] - rows["advantage"]),
            "ln(TPR/FPR)": rows["log_ratio"],
        }
    )


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """ε̂, and the average that hides a group."""
    hidden_rows = tables["hidden_groups"]
    tenth = hidden_rows[10 * hidden_rows["n_exposed"] == hidden_rows["n_members"]].iloc[0]
    average = float(tenth["epsilon_average"])
    rows = [
        verdict_row(
            "ln(TPR/FPR) on average where a tenth is exposed for certain (exact)",
            f"{PAPER_AVERAGE:g}, and infinite for the tenth",
            (average, None, None),
            "agrees" if abs(average - PAPER_AVERAGE) < 0.005 else "differs",
            "counted; no randomness",
        )
    ]
    claims = tables["claims"]
    of_condensed = claims[claims["scheme"].isin(schemes.CONDENSED)]
    rows += [_claim_verdict(row) for row in of_condensed.itertuples()]
    return rows + _group_verdicts(tables["exposed"])


def _claim_verdict(row) -> dict:
    above = row.criticised_epsilon > row.epsilon_lower_bound
    return verdict_row(
        f"ε̂ read off one curve, {row.scheme}",
        "–" if row.scheme == schemes.SUBSET else f"{CRITICISED:.2f} was published as a guarantee",
        (row.criticised_epsilon, None, None),
        f"no bound; {row.epsilon_lower_bound:.2f} can be claimed"
        if above
        else "below what can be claimed",
        f"one point with {row.true_positives} true and {row.false_positives} false positives; the "
        f"claim is Theorem 5.2 of arXiv:2305.08846 with {row.n_guesses} guesses fixed beforehand",
    )


def _group_verdicts(exposed: pd.DataFrame) -> list[dict]:
    """Whether the most exposed share gives away more than everybody, by its own interval."""
    rows = []
    for scheme, groups in exposed.groupby("scheme", sort=False):
        everybody, share = (groups[groups["group"] == name].iloc[0] for name in (EVERYBODY, SHARE))
        names = ("advantage", "advantage_low", "advantage_high")
        interval = tuple(float(share[name]) for name in names)
        # Few pairs can agree to the last digit: an interval without width shows nothing.
        more = interval[2] > interval[1] > float(everybody["advantage_high"])
        rows.append(
            verdict_row(
                f"advantage (%) against the most exposed {share['n_examples']} examples, {scheme}",
                "an average can hide a group",
                in_per_cent(interval),
                "above the average" if more else "not distinguishable from the average",
                f"chosen on other pairs; everybody: {100 * everybody['advantage']:.2f} % on the "
                f"same {share['n_pairs']} pairs",
            )
        )
    return rows


# ----------------------------------------------------------------------------------- figures


def draw_epsilons(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """ε̂ and claims by scheme; and advantages of groups beside everybody's."""
    claims, exposed = tables["claims"], tables["exposed"]
    figure, (left, right) = figures.new_figure(1, 2, height=3.8)
    places = np.arange(len(claims))
    series = {
        "criticised_epsilon": "ε̂: largest ln(TPR/FPR), no bound",
        "epsilon_lower_bound": "lower bound from one model",
        "theoretical_epsilon": "theoretical ε",
    }
    for i, (column, label) in enumerate(series.items()):
        style = figures.series(i) | {"linestyle": "none"}
        left.plot(claims[column], places, label=label, **style)
    left.set_xscale("symlog", linthresh=1)
    left.set_xlabel("nats")
    left.set_yticks(places, claims["scheme"])
    left.legend(loc="upper center", bbox_to_anchor=(0.4, -0.18))
    for i, (name, rows) in enumerate(exposed.groupby("group", sort=False)):
        mean = 100 * rows["advantage"].to_numpy()
        ends = [mean - 100 * rows["advantage_low"], 100 * rows["advantage_high"] - mean]
        style = figures.series(i) | {"linestyle": "none"}
        y = places + 0.22 * (i - 1)
        right.errorbar(mean, y, xerr=np.array(ends), capsize=2, label=name, **style)
    right.axvline(0, color="grey", linewidth=1)
    right.set_yticks(places, [""] * len(places))
    for ax in (left, right):
        ax.set_ylim(len(places) - 0.5, -0.5)
    right.set_xlabel("advantage (%)")
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return figure


FIGURES = {
    "epsilons": Figure(
        draw_epsilons,
        tables=("claims", "exposed"),
        title="What is read off a curve, and what can be claimed",
        alternative_text=(
            "Left, for each scheme, the largest log ratio of rates read off one curve, the lower "
            "bound that one model supports, and the theoretical ε where there is one. Right, the "
            "advantage against everybody, the most exposed class and the most exposed share, with "
            "intervals."
        ),
    ),
}
