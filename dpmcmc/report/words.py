"""A release in words, for its page, for a paper and for a registry: what was estimated, how, and how ε was computed.

It is computed from public facts: the plan, its schema, and the events of its guarantee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dpmcmc.data.column_kinds import Column, Counts, Levels, Range
from dpmcmc.data.schema import Schema
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.events import DEVIATIONS
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.targets.base import Target
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.per_owner import PerOwner

#: Most columns that a title names where the user gave no formula.
_TITLE_COLUMNS = 6

_MODELS = {
    "LogisticRegression": "logistic regression",
    "LinearRegression": "linear regression with normal noise",
    "OrdinalRegression": "ordinal logistic regression (proportional odds)",
    "SoftmaxRegression": "softmax (multinomial logistic) regression",
    "PoissonRegression": "Poisson regression with a log link",
    "NegativeBinomialRegression": "negative binomial regression with a log link",
}
_METHODS = {
    "NoiseAware": "a noise-aware release: sums over the records were released with Gaussian noise, and draws come from "
    "the posterior given these sums, which knows the law of their noise",
    "LabelPosterior": "randomised response: every label was changed at random, and draws come from the posterior "
    "given these labels and the features, which knows how likely each label was changed",
    "SGLD": "stochastic gradient Langevin dynamics",
    "SGHMC": "stochastic gradient Hamiltonian Monte Carlo",
    "SGNHT": "stochastic gradient Nosé–Hoover thermostats",
    "SGFS": "stochastic gradient Fisher scoring",
    "OPS": "one-posterior sampling",
}
#: Name of each event's mechanism, in the singular and in the plural.
_RELEASES = {
    "gaussian": ("Gaussian mechanism", "Gaussian mechanisms"),
    "poisson_gaussian": (
        "Gaussian mechanism on a Poisson sample",
        "Gaussian mechanisms on Poisson samples",
    ),
    "fixed_size_gaussian": (
        "Gaussian mechanism on a random subset",
        "Gaussian mechanisms on random subsets",
    ),
    "noisy_descent": (
        "last iterate of a noisy descent",
        "last iterates of noisy descents",
    ),
    "posterior_draw": (
        "draw from a log-concave posterior",
        "draws from log-concave posteriors",
    ),
    "objective_perturbation": (
        "minimiser of a perturbed objective",
        "minimisers of perturbed objectives",
    ),
    "clipped_objective_perturbation": (
        "minimiser of a perturbed clipped objective",
        "minimisers of such objectives",
    ),
    "pure": ("purely private release", "purely private releases"),
}
_ACCOUNTANTS = {
    "pld": "privacy loss distributions",
    "rdp": "Rényi differential privacy",
    "advanced": "advanced composition",
    "last_iterate": "the theorem of last iterates",
    "one_sample": "the theorems of these releases",
}


def title(plan: Plan) -> str:
    """Return the title of a run that has no name: its formula where it has a schema, else its method."""
    return plan.label if plan.schema is None else _formula(plan.schema, _TITLE_COLUMNS)


def model(target: Target) -> str:
    """Return a model in words, without an article."""
    inner, name = _named(target)
    if name is not None and isinstance(inner, LinearRegression):
        name += f" of standard deviation {inner.noise_scale:g}"
    owners = ", in which all rows of an owner are one record" if inner is not target else ""
    return f"Bayesian model {inner!r}{owners}" if name is None else f"Bayesian {name}{owners}"


def prior(plan: Plan) -> str | None:
    """Return the prior of a regression in words; None of other models."""
    inner, name = _named(plan.target)
    if name is None:
        return None
    settled = plan.describe().sections.get("mechanism", {})
    scale = f"{inner.prior_scale:g}"  # type: ignore[attr-defined]
    if settled.get("prior_scale") == "evidence":
        scale = f"that follows from the released numbers, around {scale}"
    wide = settled.get("intercept_scale")
    columns = "of the encoded columns" if plan.schema is not None else "of the columns"
    more = "" if wide is None else f" ({wide} for the intercept)"
    return f"independent normal priors of mean 0 and standard deviation {scale} for the coefficients {columns}{more}"


def method_in_words(plan: Plan) -> str:
    """Return the method in words, with its name in this library."""
    said = _METHODS.get(plan.label)
    if plan.has_chains and plan.guarantee is not None:
        said = f"{said or plan.label} on gradients with noise for privacy"
    robust = plan.describe().sections.get("mechanism", {}).get("covariance") == "sandwich"
    sandwich = ", a sandwich variance" if robust else ""
    return plan.label if said is None else f"{said} ({plan.label}{sandwich})"


def estimated(plan: Plan) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs that say what was estimated."""
    out = [("model", model(plan.target))]
    said = prior(plan)
    schema = plan.schema
    if schema is not None:
        apart = [name for name in (schema.exposure, schema.weights) if name]
        used = list(dict.fromkeys([*schema.sources, *apart]))
        out += [("formula", _formula(schema)), (f"label {schema.label}", _label(schema))]
        out += [(f"column {name}", _column(schema.columns[name])) for name in used]
        if schema.exposure:
            out.append(("offset", f"the log of {schema.exposure}"))
        if schema.weights:
            scale = schema.leaf_facts["weight_scale"]
            weighted = f"{schema.weights} over the end of its range, times {scale:.3g}"
            out.append(("weights", f"log-likelihoods are multiplied by {weighted}"))
        if any(isinstance(schema.columns[name], Range | Counts) for name in (*used, schema.label)):
            clipped = "A value outside its range was counted as its nearest bound; report the ranges with the result."
            out.append(("clipping", clipped))
        encoded = "a range is mapped into [-1, 1], and a level is 0 or 1; then every row is multiplied by "
        out.append(
            (
                "encoding",
                f"{encoded}{schema.row_scale:.3g}, so that its norm is at most 1",
            )
        )
    return out if said is None else [*out, ("prior", said)]


def accounting(guarantee: Guarantee) -> str:
    """Return how ε was computed: from which releases, by which theorem."""
    counts: Counter[str] = Counter()
    for event in guarantee.events:
        if event.mechanism not in DEVIATIONS and event.count:
            counts[event.mechanism] += event.count
    released = " and ".join(f"{count:,} {_RELEASES[kind][count > 1]}" for kind, count in counts.items())
    law = _ACCOUNTANTS.get(guarantee.accountant, "a formula of the user's own")
    if guarantee.accountant == "one_sample" and set(counts) == {"gaussian"}:
        law = "Gaussian differential privacy, which is exact"
    return f"ε is that of {released or 'no release'}, by {law} (accountant {guarantee.accountant})"


def _named(target: Target) -> tuple[Target, str | None]:
    """Return (the model of one row, its name where it is this library's)."""
    inner = target.target if isinstance(target, PerOwner) else target
    ours = type(inner).__module__.startswith("dpmcmc.")
    return inner, _MODELS.get(type(inner).__name__) if ours else None


def _formula(schema: Schema, most: int | None = None) -> str:
    if schema.formula is not None and "~" in schema.formula:
        return schema.formula
    if schema.formula is not None and "(" in schema.formula:
        return f"{schema.label} ~ {schema.formula}"
    terms = [":".join(term) for term in schema.terms] or ["1"]
    right = f"{len(terms)} terms" if most is not None and len(terms) > most else " + ".join(terms)
    return f"{schema.label} ~ {right}{'' if schema.intercept else ' - 1'}"


def _label(schema: Schema) -> str:
    kind = schema.columns[schema.label]
    levels = schema.outcome.levels or ("", "")
    scale: Mapping[str, str] = {
        "binary": f"log odds of {levels[1]!r} against {levels[0]!r}",
        "classes": f"log odds of every level against the first, {levels[0]!r}",
        "ordered": f"log odds of being above a level, {levels[0]!r} where no other is named",
        "count": "log of the expected count",
        "real": f"mean of {schema.own_name(schema.label)}",
    }
    return f"{_column(kind)}; coefficients are of the {scale[schema.outcome.kind]}"


def _column(column: Column) -> str:
    """Return the public facts of a column in words."""
    if isinstance(column, Counts):
        return f"counts from 0 to {column.largest:,}"
    if isinstance(column, Levels):
        other = "; any other value is the level other" if column.other else ""
        said = f"levels {', '.join(column.texts)}{other}"
    else:
        scale = ", on the scale of log(1 + value)" if column.scale == "log1p" else ""
        said = f"a number from {column.low:g} to {column.high:g}{scale}"
    return f"{said}; a missing value has a level of its own" if column.missing else said
