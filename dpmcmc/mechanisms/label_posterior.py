"""Posterior draws given labels that are randomised and public features: what a config with ``data.labels`` runs.

Labels are read once, and randomised (``privacy/query/randomised_response.py``). All that follows is computed from the
randomised labels and the features, so draws cost nothing more, however many, and whatever the sampler. Their posterior
is that of labels that may have been changed (``targets/randomised_labels.py``). NUTS draws from it, by four chains.
They run again, longer, on the same labels until they agree: how they mix is post-processing too.

In Python, :func:`dpmcmc.data.randomise_labels` and :class:`dpmcmc.targets.RandomisedLabels` serve any sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from dpmcmc.data.randomised_labels import labels_guarantee
from dpmcmc.data.schema import Schema
from dpmcmc.errors import DrawError
from dpmcmc.inference import convergence
from dpmcmc.mechanisms import nuts
from dpmcmc.mechanisms.base import MechanismOffers
from dpmcmc.mechanisms.one_shot import check_leaves
from dpmcmc.planning.mechanism_release import MechanismRelease
from dpmcmc.planning.permitted_uses import IF_TRUE, Use
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import RHAT, with_verdict
from dpmcmc.privacy.query.randomised_response import VALUES
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, record_shapes
from dpmcmc.targets.randomised_labels import RandomisedLabels
from dpmcmc.targets.tempered import Tempered

#: Chains, draws of each, their warm-up, and transitions for each draw; longer ones where chains do not agree.
_CHAINS = 4
_DRAWS = 250
_WARMUP = 200
_THIN = (1, 4, 16)


@dataclass(frozen=True)
class LabelPosterior(MechanismOffers):
    """1,000 posterior draws given labels that are randomised at ε."""

    epsilon: float

    release = "labels"
    honours = frozenset({"offset"})

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return posterior draws, leaves (draws, ...); labels are read here, once, and randomised.

        Raises:
            DrawError: chains left the range of floats, or do not agree; nothing leaves.
        """
        target = RandomisedLabels(plan.target, self.epsilon)
        # From here on nothing but randomised labels and public features is read.
        released = {**records, "y": target.table.drawn(records["y"], streams.noise)}
        bound = Tempered(target, 1.0).bind(record_shapes(released))
        for thin in _THIN:
            (chains,) = nuts.run_chains(
                [bound],
                released,
                nuts.Lengths(_WARMUP * thin, thin, _DRAWS),
                radius=None,
                draws=_CHAINS,
                keys=(streams.init, streams.dynamics),
            )
            rhat = convergence.summary(chains)["rhat"]
            if rhat is not None and rhat <= RHAT:
                return jax.tree.map(np.concatenate, chains)
        raise DrawError("draws: chains of NUTS on the randomised labels do not agree; give the prior a smaller scale")

    def intervals(self, plan: Plan) -> Use:
        """Return that intervals of the draws hold, and why."""
        return Use(
            True,
            f"Yes, {IF_TRUE}: the draws are of the posterior given the randomised labels, and know how likely each "
            "label was changed.",
        )


def plan_labels(target: Target, num_records: int, epsilon: float, schema: Schema | None = None) -> Plan:
    """Settle the guarantee; reads no record.

    Args:
        target: logistic or softmax regression of the true labels.
        num_records: N.
        epsilon: ε of one label, within 1e-6 and 20.
        schema: public ranges and levels of a table's columns; see :func:`dpmcmc.plan`.

    Raises:
        UnsupportedCombination: another target, or one whose records have a weight.
    """
    mechanism = LabelPosterior(epsilon)
    target = target if schema is None else schema.with_public_facts(target)
    check_leaves(mechanism, target)
    table = RandomisedLabels(target, epsilon).table
    settings = {"epsilon": epsilon, "classes": table.classes, "kept_probability": table.kept / VALUES}
    guarantee = labels_guarantee(epsilon)
    release = MechanismRelease(mechanism, guarantee, settings, _CHAINS * _DRAWS)
    return with_verdict(Plan(target, num_records, (release,), schema))
