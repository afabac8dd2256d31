"""Labels that are randomised before anything else reads them: what follows from them and public features is free.

The probabilities, and the proof that they are ε-DP, are those of ``privacy/query/randomised_response.py``. The target
:class:`dpmcmc.targets.RandomisedLabels` is the model of the labels that come out.

The promise is about one label, which :attr:`dpmcmc.privacy.Adjacency.ONE_LABEL` says. So it is never added to one about
whole records, and no ledger takes it: their adjacencies differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.errors import DataError
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomised_response import RandomisedTable
from dpmcmc.privacy.query.randomness import SecretKey, streams_of

if TYPE_CHECKING:
    from jaxtyping import Int

#: The sentence that a guarantee about one label carries.
ASSUMES = "the promise is about one label: features are taken as public, and nothing protects them."


def randomise_labels(
    y: Int[np.ndarray, " n"],
    epsilon: float,
    *,
    num_classes: int,
    key: SecretKey | jax.Array | int | None = None,
) -> tuple[Int[np.ndarray, " n"], Guarantee | None]:
    """Change each label at random, once: (randomised labels (N,), the guarantee of all that follows from them).

    A label is kept with probability e^ε/(e^ε + K − 1), and otherwise becomes each other one with the same probability
    (Warner 1965; Kairouz, Bonawitz and Ramage 2016). The true labels must be used for nothing else that leaves. To
    randomise the same labels again costs ε again: ``guarantee.compose(guarantee)``.

    Args:
        y: true labels, whole numbers in 0..K−1.
        epsilon: ε of one label, within 1e-6 and 20; δ is 0.
        num_classes: K >= 2, a public constant, never counted in the labels.
        key: None for fresh entropy of the operating system; a key or a seed that is known gives no guarantee.

    Returns:
        The randomised labels, and their guarantee, or None where the key is not secret.

    Raises:
        DataError: a label that is none of 0..K−1.
        InputError: an ε outside its range, or too many classes at it.

    Example:
        >>> import numpy as np
        >>> import dpmcmc
        >>> labels, guarantee = dpmcmc.data.randomise_labels(np.array([0, 1, 1]), 1.0, num_classes=2)
        >>> guarantee.epsilon, guarantee.delta, str(guarantee.adjacency)
        (1.0, 0.0, 'one_label')
        >>> target = dpmcmc.targets.RandomisedLabels(dpmcmc.targets.LogisticRegression(), epsilon=1.0)
    """
    table = RandomisedTable(epsilon, num_classes)
    labels = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not np.all((labels >= 0) & (labels < num_classes)):
        raise DataError(f"y: must be one array of whole numbers in 0..{num_classes - 1}, and is not")
    streams, secret = streams_of(key)
    return table.drawn(labels, streams.noise), labels_guarantee(epsilon) if secret else None


def labels_guarantee(epsilon: float) -> Guarantee:
    """Return the guarantee of labels that were randomised once at ε."""
    return Guarantee.from_events(
        (Event("pure", 0.0, 1.0, 1, epsilon=float(epsilon)),),
        delta=0.0,
        adjacency=Adjacency.ONE_LABEL,
        accountant="one_sample",
        release="labels",
        assumptions=(ASSUMES,),
    )
