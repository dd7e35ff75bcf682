"""Study 02, the bounds: how likely any attack can name the one of n that was trained on.

Hayes, Mahloujifar, Balle, arXiv:2302.07225. Nothing is trained here. The bound over sampling rates
at constant ε, over ε, steps and prior sizes, next to its rivals; the ways to estimate it next to
each other; and priors that are not a shortlist, on real images (their Appendix L).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import audited_run, figures, intervals
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import MECHANISM_FIELDS, verdict_row
from lib.tables import Field, Table

# Figure 5 of the paper: ε = 4, T = 100, n = 10.
FIGURE_5 = {"epsilon": 4.0, "steps": 100, "prior_size": 10}
PAPER_BOUNDS = {0.01: 0.20, 0.99: 0.35}
PAPER_ROUNDING = 0.01
RIVALS = ("renyi", "epsilon_delta", "fano", "renyi_fano")
METHOD_LABELS = {
    "pld": "privacy-loss distribution (ours)",
    "gaussian": "closed form",
    "renyi": "Rényi (Balle et al. 2022)",
    "epsilon_delta": "κ·exp(ε) + δ",
    "fano": "Fano (Guo et al. 2022)",
    "renyi_fano": "Rényi–Fano",
    "monte_carlo": "Algorithm 1 of the paper",
    "target_side": "samples of both sides (ours)",
}
LOSSES, RENYI = "privacy-loss distributions", "Rényi divergences"  # accountants
# The paper's Appendix I: a prior uniform over all images of 32 × 32 pixels in three colours.
TINY_LOG_KAPPA = -3072 * math.log(256)

PARAMETERS = {
    "delta": Parameter("float", "δ of every mechanism", minimum=1e-14, below=1),
    "steps": Parameter("int", "steps T of every mechanism but where they vary", minimum=1),
    "n_bound_rates": Parameter("int", "sampling rates of the bound from 0.01 to 0.99", minimum=2),
    "bound_epsilons": Parameter("floats", "theoretical ε to try", above=0, maximum=100),
    "bound_steps": Parameter("ints", "steps T to try", minimum=1),
    "bound_sampling_rates": Parameter("floats", "sampling rates to try", above=0, maximum=1),
    "bound_prior_sizes": Parameter("ints", "candidates n to try", minimum=2),
    "estimator_n_samples": Parameter("ints", "samples of the estimators that sample", minimum=100),
    "estimator_repetitions": Parameter("int", "how often each is repeated", minimum=2),
    "prior_n_images": Parameter("int", "images that stand for a prior", minimum=4),
    "prior_radii": Parameter(
        "floats", "ℓ₂ distances within which an image counts as named", minimum=0
    ),
    "second_prior_radii": Parameter("floats", "the same on the second dataset", minimum=0),
}


def check_rates(p) -> None:
    """Refuse sampling rates so small that δ alone covers ever having been sampled.

    Raises:
        WorkbookError: naming the parameter.
    """
    steps = min([p.steps, *p.bound_steps])
    for name in ("bound_sampling_rates", "idealised_sampling_rates"):
        rate = min(getattr(p, name))
        if -math.expm1(steps * math.log1p(-min(rate, 0.5))) <= p.delta:
            raise WorkbookError(
                f"{name} = {getattr(p, name)}; allowed: rates at which an example is sampled in "
                f"{steps} steps with a chance above delta = {p.delta:g}, and {rate:g} is not"
            )


RULES = (check_rates,)


def check_images(session) -> None:
    """Refuse more images than either dataset has.

    Raises:
        WorkbookError: naming the parameter.
    """
    for name in (session.p.dataset, session.p.second_dataset):
        n_available = len(session.dataset_of(name).train_images)
        if session.p.prior_n_images > n_available:
            raise WorkbookError(
                f"prior_n_images = {session.p.prior_n_images}; allowed: at most {n_available}, "
                f"the training images of {name}"
            )


DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------ cells


def bounds(cell: dict, streams, dataset: None) -> list[dict]:
    """The bound for every prior size by every method that does not sample; one mechanism."""
    from lib import reconstruction

    settled = cell | audited_run.settle_noise(cell)
    mechanism = _mechanism_of(settled)
    methods = [name for name in cell["methods"] if name != "gaussian" or cell["sampling_rate"] == 1]
    kappas = 1 / np.array(cell["prior_sizes"])
    found = {
        name: reconstruction.success_interval(kappa=kappas, method=name, **mechanism)
        for name in methods
    }
    return [
        audited_run.mechanism_row(settled)
        | {"method": name, "prior_size": n}
        | {"bound": float(found[name].value[i]), "bound_low": float(found[name].lower[i])}
        for name in methods
        for i, n in enumerate(cell["prior_sizes"])
    ]


def calibration(cell: dict, streams, dataset: None) -> list[dict]:
    """The bound at one noise, as either accountant settles it for the same ε."""
    from lib import accounting, reconstruction

    settled = cell | audited_run.settle_noise(cell)
    if cell["accountant"] == RENYI:
        names = ("epsilon", "delta", "sampling_rate", "steps")
        sigma = accounting.renyi_noise_multiplier(**{name: cell[name] for name in names})
        settled["noise_multiplier"] = audited_run.rounded_up(sigma, 4)
        mechanism = {name: settled[name] for name in ("noise_multiplier", *names[1:])}
        settled["theoretical_epsilon"] = audited_run.rounded_up(accounting.epsilon(**mechanism), 6)
    bound = reconstruction.success_bound(kappa=1 / cell["prior_size"], **_mechanism_of(settled))
    return [
        audited_run.mechanism_row(settled)
        | {name: cell[name] for name in ("accountant", "prior_size")}
        | {"bound": float(bound)}
    ]


def estimator(cell: dict, streams, dataset: None) -> list[dict]:
    """One method that samples, again and again, at one number of samples."""
    from lib import reconstruction

    settled = cell | audited_run.settle_noise(cell)
    mechanism = _mechanism_of(settled)
    kappa = 1 / cell["prior_size"]
    exact = reconstruction.success_interval(kappa=kappa, **mechanism)
    rows = []
    for repetition in range(cell["repetitions"]):
        found = reconstruction.success_interval(
            kappa=kappa,
            method=cell["method"],
            n_samples=cell["n_samples"],
            rng=streams.generator(f"repetition {repetition}"),
            **mechanism,
        )
        rows.append(
            audited_run.mechanism_row(settled)
            | {
                "method": cell["method"],
                "prior_size": cell["prior_size"],
                "n_samples": cell["n_samples"],
                "repetition": repetition,
                "estimate": float(found.value),
                "low": float(found.lower),
                "high": float(found.upper),
                "bound": float(exact.value),
                "bound_low": float(exact.lower),
            }
        )
    return rows


def prior(cell: dict, streams, dataset) -> list[dict]:
    """κ of the images' own distribution within a radius, and the bound that follows for each ε.

    The bound is taken at the upper end of κ's interval, so that it holds at its confidence.
    """
    from lib import reconstruction

    order = streams.generator("images").permutation(len(dataset.train_images))
    images = dataset.train_images[order[: cell["n_images"]]]
    samples = images.reshape(len(images), -1) / 255.0
    # Comparing all images with each other is the work here, and does not depend on ε.
    counts = reconstruction.ball_counts(samples, radius=cell["radius"])
    numbers = {name: getattr(counts, name) for name in ("n_near", "n_tested", "n_crowd")}
    near = {"n_successes": counts.n_near, "n_trials": counts.n_tested}
    crowd = {"n_successes": counts.n_crowd, "n_trials": counts.n_samples}
    kappa = {
        "kappa": float(intervals.rate(**near)),
        "kappa_low": float(intervals.rate_at_least(**near)),
        "kappa_high": float(intervals.rate_upper(**crowd)),
    }
    rows = []
    for epsilon in cell["epsilons"]:
        settled = cell | {"epsilon": epsilon}
        settled |= audited_run.settle_noise(settled)
        bound = reconstruction.success_bound(kappa=kappa["kappa_high"], **_mechanism_of(settled))
        rows.append(
            audited_run.mechanism_row(settled)
            | {
                "dataset": cell["dataset"],
                "radius": cell["radius"],
                "n_images": len(images),
            }
            | numbers
            | kappa
            | {"bound": float(bound)}
        )
    return rows


def tiny_prior(cell: dict, streams, dataset: None) -> list[dict]:
    """The bound for a prior so wide that κ is no floating-point number."""
    from lib import reconstruction

    settled = cell | audited_run.settle_noise(cell)
    blind = {"log_kappa": cell["log_kappa"]}
    log_bound = reconstruction.log_success_bound(**blind, **_mechanism_of(settled))
    return [audited_run.mechanism_row(settled) | blind | {"log_bound": log_bound}]


def _mechanism_of(settled: dict) -> dict:
    return {name: settled[name] for name in ("noise_multiplier", "steps", "sampling_rate")}


# --------------------------------------------------------------------- from parameters to cells


def figure_5_cells(session) -> list[dict]:
    """The bound over sampling rates at the setting of the paper's Figure 5."""
    rates = np.linspace(0.01, 0.99, session.p.n_bound_rates).round(4)
    return [
        _cell(session.p, FIGURE_5["epsilon"], rate, FIGURE_5["steps"])
        | {"methods": ["pld"], "prior_sizes": [FIGURE_5["prior_size"]]}
        for rate in rates.tolist()
    ]


def calibration_cells(session) -> list[dict]:
    """Both accountants at the sampling rates of the paper's two bounds."""
    return [
        _cell(session.p, FIGURE_5["epsilon"], rate, FIGURE_5["steps"])
        | {"accountant": accountant, "prior_size": FIGURE_5["prior_size"]}
        for rate in PAPER_BOUNDS
        for accountant in (LOSSES, RENYI)
    ]


def bound_cells(session) -> list[dict]:
    """Every ε and every T at every sampling rate, for all prior sizes, by all methods."""
    p = session.p
    points = [(epsilon, rate, p.steps) for epsilon in p.bound_epsilons for rate in _rates(p)]
    points += [(_middle(p.bound_epsilons), rate, t) for t in p.bound_steps for rate in _rates(p)]
    options = {"methods": ["pld", "gaussian", *RIVALS], "prior_sizes": p.bound_prior_sizes}
    return [_cell(p, *point) | options for point in dict.fromkeys(points)]


def estimator_cells(session) -> list[dict]:
    """Both methods that sample, at each number of samples and sampling rate."""
    p = session.p
    return [
        _cell(p, _middle(p.bound_epsilons), rate, p.steps)
        | {"method": method, "n_samples": n, "prior_size": FIGURE_5["prior_size"]}
        | {"repetitions": p.estimator_repetitions}
        for rate in _rates(p)
        for method in ("monte_carlo", "target_side")
        for n in p.estimator_n_samples
    ]


def prior_cells(session) -> list[dict]:
    """One cell for each radius, full batches."""
    return _prior_cells(session.p, session.p.dataset, session.p.prior_radii)


def second_prior_cells(session) -> list[dict]:
    """The same for the second dataset."""
    return _prior_cells(session.p, session.p.second_dataset, session.p.second_prior_radii)


def _prior_cells(p, dataset: str, radii: list[float]) -> list[dict]:
    common = {"dataset": dataset, "n_images": p.prior_n_images, "epsilons": p.bound_epsilons}
    common |= {"delta": p.delta, "sampling_rate": 1.0, "steps": p.steps}
    return [common | {"radius": radius} for radius in radii]


def tiny_prior_cells(session) -> list[dict]:
    """One cell for each ε, full batches."""
    p = session.p
    return [
        _cell(p, epsilon, 1.0, p.steps) | {"log_kappa": TINY_LOG_KAPPA}
        for epsilon in p.bound_epsilons
    ]


def _rates(p) -> list[float]:
    return list(p.bound_sampling_rates)


def _middle(values: list) -> float:
    return sorted(values)[len(values) // 2]


def _cell(p, epsilon: float, sampling_rate: float, steps: int) -> dict:
    return {
        "epsilon": epsilon,
        "delta": p.delta,
        "sampling_rate": sampling_rate,
        "steps": steps,
    }


# ------------------------------------------------------------------------------------ tables

PRIOR_SIZE = Field("prior_size", "integer", "", "candidates n of a uniform prior", minimum=2)
METHOD = Field("method", "string", "", "how the bound was computed")


def bound_field(
    prior: str = "prior_size",
    *,
    meaning: str = "upper bound on the chance that any attack names the target",
    **more_columns: str,
) -> Field:
    """The bound of a row, recomputed from the row's mechanism and prior.

    Args:
        prior: the column with the prior, n or κ.
        meaning: of the column.
        more_columns: further arguments of the recipe, and where they stand.
    """
    argument = "prior_size" if prior == "prior_size" else "kappa"
    columns = {name: name for name in ("noise_multiplier", "steps", "sampling_rate")}
    return Field(
        "bound",
        "number",
        "",
        meaning,
        minimum=0,
        maximum=1,
        recipe={
            "function": "reconstruction.success_bound_of_rows",
            "columns": {argument: prior} | columns | more_columns,
        },
    )


def _kappa_field(name: str, function: str, successes: str, trials: str, meaning: str) -> Field:
    columns = {"n_successes": successes, "n_trials": trials}
    recipe = {"function": f"intervals.{function}", "columns": columns}
    return Field(name, "number", "", meaning, minimum=0, maximum=1, recipe=recipe)


def _prior_table(of_what: str) -> Table:
    return Table(
        fields=(
            Field("dataset", "string", "", "dataset that the images are of"),
            *MECHANISM_FIELDS,
            Field("radius", "number", "", "ℓ₂ distance, pixels in [0, 1]", minimum=0),
            Field("n_images", "integer", "", "images that stand for the prior", minimum=2),
            Field("n_near", "integer", "", "images in the ball found on the others", minimum=0),
            Field("n_tested", "integer", "", "of as many, one half", minimum=1),
            Field("n_crowd", "integer", "", "images that one ball could hold at most", minimum=1),
            _kappa_field("kappa", "rate", "n_near", "n_tested", "mass of the best ball found"),
            _kappa_field(
                "kappa_low", "rate_at_least", "n_near", "n_tested", "lower end of κ's 95 % interval"
            ),
            _kappa_field(
                "kappa_high", "rate_upper", "n_crowd", "n_images", "upper end of κ's 95 % interval"
            ),
            bound_field("kappa_high", meaning="bound at κ's upper end"),
        ),
        key=("epsilon", "radius"),
        meaning=f"what the distribution of the {of_what}'s images gives away within a distance",
    )


_BOUND_FIELDS = (
    *MECHANISM_FIELDS,
    METHOD,
    PRIOR_SIZE,
    bound_field(method="method"),
    Field("bound_low", "number", "", "what the exact value of the bound is at least", minimum=0),
)

TABLES = {
    "figure_5": Table(
        fields=_BOUND_FIELDS,
        key=("sampling_rate",),
        meaning="the bound at one sampling rate, noise tuned to the same ε",
    ),
    "bounds": Table(
        fields=_BOUND_FIELDS,
        key=("epsilon", "sampling_rate", "steps", "method", "prior_size"),
        meaning="one bound by one method",
    ),
    "calibrations": Table(
        fields=(
            *MECHANISM_FIELDS,
            Field("accountant", "string", "", "what the noise was calibrated by"),
            PRIOR_SIZE,
            bound_field(),
        ),
        key=("sampling_rate", "accountant"),
        meaning="the bound of Figure 5 at the noise of either accountant for the same ε",
    ),
    "estimators": Table(
        fields=(
            *MECHANISM_FIELDS,
            METHOD,
            PRIOR_SIZE,
            Field("n_samples", "integer", "", "samples", minimum=1),
            Field("repetition", "integer", "", "number of the repetition", minimum=0),
            Field("estimate", "number", "", "estimate of the bound", minimum=0),
            Field("low", "number", "", "lower end of its own 95 % interval", minimum=0),
            Field("high", "number", "", "upper end of its own 95 % interval", minimum=0),
            bound_field(),
            Field("bound_low", "number", "", "what the exact value is at least", minimum=0),
        ),
        key=("sampling_rate", "method", "n_samples", "repetition"),
        meaning="one estimate of the bound from samples, beside the exact value",
    ),
    "priors": _prior_table("dataset"),
    "priors_second": _prior_table("second dataset"),
    "tiny_priors": Table(
        fields=(
            *MECHANISM_FIELDS,
            Field("log_kappa", "number", "", "natural logarithm of κ"),
            Field(
                "log_bound",
                "number",
                "",
                "natural logarithm of the bound",
                maximum=0,
                recipe={
                    "function": "reconstruction.log_success_bound_of_rows",
                    "columns": {
                        name: name
                        for name in ("log_kappa", "noise_multiplier", "steps", "sampling_rate")
                    },
                },
            ),
        ),
        key=("epsilon",),
        meaning="a prior uniform over all images",
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Ours and the rivals' bounds for ten candidates, by ε and sampling rate."""
    rows = tables["bounds"]
    steps = rows["steps"].iloc[0]
    n = min(rows["prior_size"].unique(), key=lambda size: abs(size - FIGURE_5["prior_size"]))
    shown = rows[(rows["prior_size"] == n) & (rows["steps"] == steps)]
    wide = shown.pivot_table(index=["epsilon", "sampling_rate"], columns="method", values="bound")
    names = [name for name in METHOD_LABELS if name in wide.columns]
    wide = wide[names].reset_index()
    return wide.rename(columns={"epsilon": "ε", "sampling_rate": "q"} | METHOD_LABELS)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The paper's two bounds, whether they rise with q and T, rivals, and its estimator."""
    rows = [_paper_verdict(rate, paper, tables) for rate, paper in PAPER_BOUNDS.items()]
    rows.append(_rising_verdict(tables["figure_5"]))
    rows += [_steps_verdict(rate, at) for rate, at in _over_steps(tables["bounds"]) if len(at) > 1]
    rows += [_rival_verdict(name, tables["bounds"]) for name in RIVALS]
    rows += [
        _estimator_verdict(method, of_method)
        for method, of_method in tables["estimators"].groupby("method", sort=False)
    ]
    return [row for row in rows if row is not None]


def _paper_verdict(rate: float, paper: float, tables: dict[str, pd.DataFrame]) -> dict | None:
    over_q, noise = tables["figure_5"], tables["calibrations"]
    at = over_q[over_q["sampling_rate"] == rate]
    if at.empty:
        return None
    ours, error = float(at["bound"].iloc[0]), float((at["bound"] - at["bound_low"]).iloc[0])
    other = noise[(noise["sampling_rate"] == rate) & (noise["accountant"] == RENYI)]["bound"]
    return verdict_row(
        f"bound at ε = 4, q = {rate:g} (Figure 5)",
        f"{paper:g}",
        (ours, ours, ours),
        "agrees"
        if abs(ours - paper) <= PAPER_ROUNDING
        else "differs: ours is " + ("tighter" if ours < paper else "looser"),
        f"at most {error:.1e} too high; the paper's is sampled, read off a figure to ± "
        f"{PAPER_ROUNDING:g}, and of a noise whose accountant is not named: by Rényi divergences "
        f"it would be {other.iloc[0]:.3f}",
    )


def _over_steps(rows: pd.DataFrame):
    """For each sampling rate, our bounds over T at the ε and n that all T share."""
    middle = _middle(list(rows["epsilon"].unique()))
    n = min(rows["prior_size"].unique(), key=lambda size: abs(size - FIGURE_5["prior_size"]))
    ours = rows[(rows["method"] == "pld") & (rows["epsilon"] == middle) & (rows["prior_size"] == n)]
    for rate, at in ours.groupby("sampling_rate"):
        yield rate, at.sort_values("steps")


def _steps_verdict(rate: float, at: pd.DataFrame) -> dict:
    least = float(np.diff(at["bound"]).min())
    step, value = at["steps"], at["bound"]
    return verdict_row(
        f"smallest change of the bound from one T to the next larger one, ε constant, q = {rate:g}",
        "none given",
        (least, least, least),
        "never falls" if least > -1e-3 else "falls",
        f"{len(at)} values of T: from {value.iloc[0]:.3f} at T = {step.iloc[0]} to "
        f"{value.iloc[-1]:.3f} at T = {step.iloc[-1]}",
    )


def _rising_verdict(over_q: pd.DataFrame) -> dict:
    in_order = over_q.sort_values("sampling_rate")["bound"].to_numpy()
    least = float(np.diff(in_order).min())
    return verdict_row(
        "smallest step of the bound from one q to the next larger one, ε constant",
        "rises with q",
        (least, least, least),
        "agrees" if least > -1e-4 else "differs: falls",
        f"{in_order.size} values of q, from {in_order[0]:.3f} to {in_order[-1]:.3f}",
    )


def _rival_verdict(name: str, rows: pd.DataFrame) -> dict:
    """Largest ratio of a rival's bound to ours, and whether it is ever below."""
    keys = ["epsilon", "sampling_rate", "steps", "prior_size"]
    ours = rows[rows["method"] == "pld"].set_index(keys)["bound"]
    theirs = rows[rows["method"] == name].set_index(keys)["bound"]
    ratio = (theirs / ours.reindex(theirs.index)).dropna()
    largest = float(ratio.max())
    never_below = ratio.min() >= 1 - 1e-3
    return verdict_row(
        f"largest ratio of the rival's bound to ours, {METHOD_LABELS[name]}",
        "ours is never looser",
        (largest, largest, largest),
        "agrees" if never_below else "differs: it is tighter somewhere",
        f"{len(ratio)} mechanisms and prior sizes; smallest ratio {ratio.min():.4f}",
    )


def _estimator_verdict(method: str, rows: pd.DataFrame) -> dict:
    """How often an estimator's own 95 % interval covers the exact value."""
    covered = int(((rows["low"] <= rows["bound"]) & (rows["high"] >= rows["bound_low"])).sum())
    low, high = intervals.rate_interval(covered, len(rows))
    return verdict_row(
        f"95 % intervals that cover the exact bound, {METHOD_LABELS[method]}",
        "0.95",
        (covered / len(rows), low, high),
        "below 95 %" if high < 0.95 else "at least 95 %" if low >= 0.95 else "not distinguishable",
        f"{covered} of {len(rows)} estimates, all numbers of samples and sampling rates together",
    )


# ----------------------------------------------------------------------------------- figures


def draw_rivals(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bounds over ε by method, and over prior sizes; a row for each sampling rate's ends."""
    rows = tables["bounds"]
    rates = sorted(rows["sampling_rate"].unique())
    rates = [rates[-1], rates[0]] if len(rates) > 1 else rates
    steps = rows["steps"].iloc[0]
    figure, axes = figures.new_figure(1, len(rates) + 1, height=3.6)
    n = min(rows["prior_size"].unique(), key=lambda size: abs(size - FIGURE_5["prior_size"]))
    for ax, rate in zip(axes, rates, strict=False):
        at = rows[(rows["sampling_rate"] == rate) & (rows["steps"] == steps)]
        at = at[at["prior_size"] == n]
        for i, name in enumerate(("pld", *RIVALS)):
            of_method = at[at["method"] == name].sort_values("epsilon")
            style = figures.series(i) | {"markerfacecolor": "none"}
            ax.plot(of_method["epsilon"], of_method["bound"], label=METHOD_LABELS[name], **style)
        ax.set_xscale("log")
        ticks = sorted(at["epsilon"].unique())
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.set_xticks([], minor=True)
        ax.set_ylim(0, 1.03)
        ax.set_xlabel("theoretical ε (nats)")
        ax.set_title(f"n = {n}, q = {rate:g}")
    _draw_over_prior_sizes(axes[-1], rows[(rows["steps"] == steps) & (rows["method"] == "pld")])
    axes[0].set_ylabel("bound on success")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_over_prior_sizes(ax, rows: pd.DataFrame) -> None:
    """Our bound over the number of candidates at the middle ε, a line for each sampling rate."""
    middle = _middle(list(rows["epsilon"].unique()))
    rows = rows[rows["epsilon"] == middle].sort_values("prior_size")
    greys = np.linspace(0.0, 0.6, rows["sampling_rate"].nunique())
    for i, (rate, at) in enumerate(rows.groupby("sampling_rate")):
        style = {"color": str(greys[i]), "linewidth": 1.1, "linestyle": figures.LINE_STYLES[i % 4]}
        ax.plot(at["prior_size"], at["bound"], label=f"q = {rate:g}", **style)
    sizes = np.array(sorted(rows["prior_size"].unique()))
    ax.plot(sizes, 1 / sizes, color="grey", linewidth=1, label="guessing")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("candidates n")
    ax.set_title(f"ours, ε = {middle:g}")
    ax.legend(loc="lower left", fontsize=7)


def draw_estimators(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Error of the sampled estimates against the number of samples, one panel a sampling rate."""
    rows = tables["estimators"]
    rates = sorted(rows["sampling_rate"].unique())
    figure, axes = figures.new_figure(1, len(rates), height=3.2, share_y=True)
    for ax, rate in zip(np.atleast_1d(axes), rates, strict=True):
        at = rows[rows["sampling_rate"] == rate]
        for i, (method, of_method) in enumerate(at.groupby("method", sort=False)):
            error = (of_method["estimate"] - of_method["bound"]).abs()
            width = of_method["high"] - of_method["low"]
            style = figures.series(i) | {"linestyle": "none", "markerfacecolor": "none"}
            shift = 1.1 ** (2 * i - 1)
            ax.plot(of_method["n_samples"] * shift, error, label=METHOD_LABELS[method], **style)
            mean = width.groupby(of_method["n_samples"]).mean()
            line = {"color": style["color"], "linewidth": 1, "linestyle": ("--", ":")[i]}
            ax.plot(mean.index, mean, label=f"{METHOD_LABELS[method]}: its interval", **line)
        exact = (at["bound"] - at["bound_low"]).max()
        ax.axhline(exact, color=figures.BLACK, linewidth=1, label="error limit of ours")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"q = {rate:g}")
        ax.set_xlabel("samples")
    np.atleast_1d(axes)[0].set_ylabel("distance from the bound")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def draw_priors(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """κ of both datasets with intervals, and the bound on the first, over the distance."""
    figure, axes = figures.new_figure(1, 3, height=3.0, share_y=True)
    for ax, name in zip(axes, ("priors", "priors_second"), strict=False):
        rows = tables[name]
        first = rows[rows["epsilon"] == rows["epsilon"].iloc[0]].sort_values("radius")
        figures.band(ax, first["radius"], first["kappa_low"], first["kappa_high"], label="κ, 95 %")
        ax.plot(first["radius"], first["kappa"], label="best ball found", **figures.series(0))
        ax.set_title(f"{first['dataset'].iloc[0]} ({first['n_images'].iloc[0]:,})")
        ax.legend(loc="upper left")
    axes[0].set_ylabel("κ, the best blind guess")
    rows = tables["priors"].sort_values("radius")
    for i, (epsilon, at) in enumerate(rows.groupby("epsilon")):
        style = figures.series(i) | {"markerfacecolor": "none"}
        axes[2].plot(at["radius"], at["bound"], label=f"ε = {epsilon:g}", **style)
    axes[2].set_ylabel("bound on success")
    axes[2].set_title(f"{rows['dataset'].iloc[0]}, q = 1, T = {rows['steps'].iloc[0]}")
    axes[2].legend(loc="lower right")
    for ax in axes:
        ax.set_xlabel("ℓ₂ distance that counts")
        ax.set_ylim(0, 1.03)
    return figure


def draw_steps(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Our bound over T at constant ε, a line for each sampling rate."""
    rows = tables["bounds"]
    figure, ax = figures.new_figure(height=3.2)
    for i, (rate, at) in enumerate(_over_steps(rows)):
        style = figures.series(i) | {"markerfacecolor": "none"}
        ax.plot(at["steps"], at["bound"], label=f"q = {rate:g}", **style)
        middle, n = at["epsilon"].iloc[0], at["prior_size"].iloc[0]
    ax.axhline(1 / n, color="grey", linewidth=1, linestyle=":", label="guessing")
    ax.set_xscale("log")
    figures.start_at_zero(ax)
    ax.set_xlabel("steps T, at constant ε")
    ax.set_ylabel("bound on success")
    ax.set_title(f"ε = {middle:g}, n = {n}")
    figure.legend(loc="outside right upper")
    return figure


FIGURES = {
    "steps": Figure(
        draw_steps,
        tables=("bounds",),
        title="More steps at the same ε",
        alternative_text=(
            "The upper bound on naming the target over the number of steps at constant ε, one "
            "line a sampling rate, with guessing below."
        ),
    ),
    "rivals": Figure(
        draw_rivals,
        tables=("bounds",),
        title="Bound against bound",
        alternative_text=(
            "Upper bounds on the chance of naming the target over ε, by five methods, for full "
            "batches and for the smallest sampling rate; and ours over the number of candidates, "
            "one line a sampling rate, above guessing."
        ),
    ),
    "estimators": Figure(
        draw_estimators,
        tables=("estimators",),
        title="Ways to the same number",
        alternative_text=(
            "Distance of two sampling estimators from the exact bound against their number of "
            "samples, with the width of their intervals dashed and the error limit of the exact "
            "computation as a line; one panel a sampling rate."
        ),
    ),
    "priors": Figure(
        draw_priors,
        tables=("priors", "priors_second"),
        title="When a close image counts",
        alternative_text=(
            "Best blind guess about an image, with its interval, over the distance that counts as "
            "named, for two datasets; on the right the bound that follows for each ε on the first."
        ),
    ),
}
