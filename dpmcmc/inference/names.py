"""Names of the numbers of a draw: path of the leaf, and the column of the records that a coefficient belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree

#: Dimension of an array: its name, and its coordinates where it has some.
Axis = tuple[str, Sequence[str] | None]
#: Name of a leaf that is the whole pytree.
ALONE = "theta"


def leaf_names(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the leaves of a pytree by their paths, joined by dots; a lone leaf is ``theta``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or ALONE: leaf for path, leaf in leaves}


def axes(name: str, shape: tuple[int, ...], columns: Sequence[str] | None) -> list[Axis]:
    """Return the dimensions of a parameter.

    A lone leaf (d,) or (d, classes), and a vector (d,) at the top of a pytree, has a coefficient for each of the d
    columns of the records. A path with a dot is a network's, where a length may be d by chance.

    Args:
        name: of its leaf.
        shape: of one draw.
        columns: of the records, or None.
    """
    fits = columns is not None and shape[:1] == (len(columns),)
    if fits and ((len(shape) == 1 and "." not in name) or (len(shape) == 2 and name == ALONE)):
        return [
            ("column", columns),
            *(("class", [str(k) for k in range(count)]) for count in shape[1:]),
        ]
    return [(f"{name}_dim_{axis}", None) for axis in range(len(shape))]


def labels(name: str, shape: tuple[int, ...], columns: Sequence[str] | None) -> Iterator[str]:
    """Yield a name for each number of a parameter, in order; arguments as of :func:`axes`."""
    along = axes(name, shape, columns)
    places = [coordinates or map(str, range(count)) for (_, coordinates), count in zip(along, shape, strict=True)]
    by_column = name == ALONE and bool(along) and along[0][1] is not None
    for place in itertools.product(*places):
        yield (", class ".join(place) if by_column else f"{name}[{','.join(place)}]" if place else name)


def few(draws: PyTree, columns: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return up to six numbers of a draw, evenly spread, by name: (chains, draws) each."""
    names, numbers = flat(draws, columns)
    return {names[at]: numbers[..., at] for at in np.linspace(0, len(names) - 1, 6).astype(int)}


def flat(draws: PyTree, columns: Sequence[str] | None, most: int | None = None) -> tuple[list[str], np.ndarray]:
    """Return (a name for each number of a draw, draws (chains, draws, numbers)); the first ``most`` numbers, or all."""
    named = {name: np.asarray(leaf) for name, leaf in leaf_names(draws).items()}
    every = itertools.chain.from_iterable(labels(name, leaf.shape[2:], columns) for name, leaf in named.items())
    numbers = [leaf.reshape(*leaf.shape[:2], -1)[..., :most] for leaf in named.values()]
    return list(itertools.islice(every, most)), np.concatenate(numbers, axis=2)[..., :most]
