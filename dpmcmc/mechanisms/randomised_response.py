r"""Randomised labels, and draws from the posterior given them and the features.

Each label is randomised once at ε (``privacy/query/randomised_response.py``). The released labels are ε-DP for one
label, at δ = 0, and no number of records, clip or noise enters. All that follows is computed from released labels and
from features, which are taken as public: draws, however many and by whatever sampler, cost nothing more.

The posterior is that of labels that may have been changed (``targets/randomised_labels.py``). NUTS draws from it, by
four chains. They run again, longer, on the same labels until they agree: how they mix is post-processing too.

Only draws leave. Whoever may see the features may be given the labels as well: the promise covers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import jax
import numpy as np
from annotated_types import Ge

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import convergence
from dpmcmc.mechanisms.base import MechanismPlan, OneShot, check_leaves
from dpmcmc.mechanisms.engines import DrawError, nuts
from dpmcmc.planning.permitted_uses import IF_TRUE, REFUSED, Use
from dpmcmc.planning.verdict import FEWEST_DRAWS, RHAT
from dpmcmc.privacy.accounting.charging import refuse_floats
from dpmcmc.privacy.accounting.events import Adjacency, Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomised_response import VALUES
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, record_shapes
from dpmcmc.targets.randomised_labels import RandomisedLabels
from dpmcmc.targets.transformed import Tempered

#: The sentence that a guarantee about one label carries.
ASSUMES = "the promise is about one label: features are taken as public, and nothing protects them."
#: Chains, their warm-up, and transitions for each draw; longer ones where chains do not agree.
_CHAINS = 4
_WARMUP = 200
_THIN = (1, 4, 16)


@dataclass(frozen=True)
class RandomisedResponse(OneShot):
    """Posterior draws given labels that were randomised at ε; a promise about one label, with public features.

    Args:
        draws: how many; they cost nothing.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import RandomisedResponse
        >>> from dpmcmc.targets import LogisticRegression
        >>> plan = RandomisedResponse().plan(LogisticRegression(num_features=2), num_records=1000, epsilon=1.0)
        >>> plan.guarantee.epsilon, plan.guarantee.delta, str(plan.guarantee.adjacency)
        (1.0, 0.0, 'one_label')
        >>> round(plan.settings["kept_probability"], 3)
        0.731
    """

    draws: Annotated[int, Ge(1)] = 1000

    release = "labels"
    unit = "label"
    honours = frozenset({"offset"})

    def plan(
        self,
        target: Target,
        *,
        num_records: int,
        epsilon: float,
        delta: float = 0.0,
        adjacency: str = "one_label",
        schema: Schema | None = None,
        hardened: bool | None = None,
    ) -> MechanismPlan:
        """Settle the guarantee; reads no record.

        Args:
            target: logistic or softmax regression of the true labels.
            num_records: N.
            epsilon: ε of one label, within 1e-6 and 20.
            delta: 0.
            adjacency: ``one_label``.
            schema: public ranges and levels of a table's columns; see :func:`dpmcmc.plan`.
            hardened: as of :class:`dpmcmc.Privacy`; false is refused.

        Raises:
            UnsupportedCombination: a promise about whole records; another target, or one whose records have a weight.
            ValueError: impossible numbers, named by the argument first.
        """
        refuse_floats(hardened)
        if delta or Adjacency(adjacency).of_records:
            raise UnsupportedCombination(
                "adjacency: randomised labels keep a promise about one label at delta 0, and none about whole records; "
                "leave delta and adjacency out, or take another mechanism",
                "adjacency",
            )
        if num_records < 1:
            raise InputError(f"num_records: must be at least 1, got {num_records}", "num_records")
        target = target if schema is None else schema.with_public_facts(target)
        check_leaves(self, target)
        table = RandomisedLabels(target, epsilon).table
        guarantee = Guarantee.from_events(
            (Event("pure", 0.0, 1.0, 1, epsilon=float(epsilon)),),
            delta=0.0,
            adjacency=Adjacency.ONE_LABEL,
            accountant=self.accountant,
            release=self.release,
            assumptions=(ASSUMES,),
        )
        settings = {
            "epsilon": float(epsilon),
            "classes": table.classes,
            "kept_probability": table.kept / VALUES,
        }
        return MechanismPlan(self, target, num_records, guarantee, settings, self.draws, schema)

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> PyTree:
        """Return posterior draws, leaves (draws, ...); labels are read here, once, and randomised.

        Raises:
            DrawError: chains left the range of floats, or do not agree; nothing leaves.
        """
        target = RandomisedLabels(plan.target, plan.settings["epsilon"])
        # From here on nothing but randomised labels and public features is read.
        labels = target.table.drawn(records["y"], streams.noise)
        return self.posterior(target, {**records, "y": labels}, streams)

    def posterior(self, target: RandomisedLabels, released: PyTree, streams: Streams) -> PyTree:
        """Return draws given randomised labels, leaves (draws, ...).

        Args:
            target: of the randomised labels.
            released: records with these in the place of their labels.
            streams: keys; ``init`` and ``dynamics`` are used.

        Raises:
            DrawError: see :meth:`draw`.
        """
        bound = Tempered(target, 1.0).bind(record_shapes(released))
        kept = math.ceil(self.draws / _CHAINS)
        for thin in _THIN:
            lengths = nuts.Lengths(_WARMUP * thin, thin, kept)
            (chains,) = nuts.run_chains(
                [bound],
                released,
                lengths,
                radius=None,
                draws=_CHAINS,
                keys=(streams.init, streams.dynamics),
            )
            rhat = convergence.summary(chains)["rhat"]
            if self.draws < FEWEST_DRAWS or (rhat is not None and rhat <= RHAT):
                return jax.tree.map(lambda leaf: np.concatenate(leaf)[: self.draws], chains)
        raise DrawError(
            "engine: chains of NUTS on the randomised labels do not agree; give the prior a smaller scale, or take "
            "more draws"
        )

    def intervals(self, plan: MechanismPlan) -> Use:
        """Return whether intervals of the draws hold, and why; planned from public facts."""
        if self.draws < FEWEST_DRAWS:
            why = f"{self.draws} draws are too few; take {FEWEST_DRAWS} or more."
            return Use(False, f"{REFUSED}: {why}", "too few draws")
        return Use(
            True,
            f"Yes, {IF_TRUE}: the draws are of the posterior given the randomised labels, and know how likely each "
            "label was changed.",
        )
