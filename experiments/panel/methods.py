"""The list of methods. A new one is a line here and a function ``(trials, site) -> outcomes``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpmcmc.cli.refusals import CommandError
from experiments.panel import one_shot, printed, samplers
from experiments.panel.config import Panel
from experiments.panel.trial import Outcome, Site, Trial


@dataclass(frozen=True)
class Method:
    """A curve of the figure.

    Attributes:
        version: ``tight``: our accounting; ``printed``: the thesis's calibrators and constants.
        name: in YAML and results.
        label: in pictures.
        run: many trials at once.
        ours: whether it is one of ours, and not a baseline, in the comparison.
    """

    version: str
    name: str
    label: str
    run: Callable[[Sequence[Trial], Site], list[Outcome]]
    ours: bool = False


#: In the order in which they run, the fastest first.
METHODS: tuple[Method, ...] = (
    Method("tight", "sgld", "SGLD", samplers.runner(samplers.SGLD), ours=True),
    Method("tight", "noisy_sgd", "noisy SGD", samplers.runner(samplers.NOISY_SGD)),
    Method("tight", "sghmc", "SGHMC", samplers.runner(samplers.SGHMC), ours=True),
    Method("tight", "sgnht", "SGNHT", samplers.runner(samplers.SGNHT), ours=True),
    Method("tight", "sgfs", "SGFS", samplers.runner(samplers.SGFS), ours=True),
    Method("tight", "hybrid", "hybrid (OPS + SGLD)", one_shot.hybrid, ours=True),
    Method("tight", "certified_ops", "certified OPS", one_shot.certified, ours=True),
    Method("tight", "objective_perturbation", "objective perturbation", one_shot.objective("tight")),
    Method("tight", "objective_clipped", "objective pert., clipped loss", one_shot.objective("tight")),
    Method("tight", "output_perturbation", "output perturbation", one_shot.output),
    Method("tight", "ops_printed", "OPS, 4B", printed.ops),
    Method("tight", "ops_range", "OPS, range", one_shot.ops("range")),
    Method("tight", "ops_gdp", "OPS, Gaussian DP", one_shot.ops("gdp")),
    Method("printed", "ops", "OPS", printed.ops),
    Method("printed", "hybrid", "hybrid (OPS + DP-SGNHT)", printed.hybrid),
    Method("printed", "objective_perturbation", "OBJPERT", one_shot.objective("kst12")),
    Method("printed", "output_perturbation", "output perturbation", printed.output),
    Method("printed", "sgld", "DP-SGLD", printed.sgld),
    Method("printed", "sgnht", "DP-SGNHT", printed.sgnht),
)


def named(version: str, name: str) -> Method:
    """The method of this version and name."""
    return next(m for m in METHODS if (m.version, m.name) == (version, name))


def selected(names: str | None) -> tuple[Method, ...]:
    """The methods that ``--methods`` names, as ``name`` or ``version/name``; all of them for None.

    Raises:
        CommandError: a name is no method's.
    """
    given = None if names is None else names.split(",")
    _check("--methods", given, {name for method in METHODS for name in _names(method)})
    return tuple(m for m in METHODS if given is None or not _names(m).isdisjoint(given))


def encodings_of(panel: Panel, names: str | None) -> list[str]:
    """The encodings that ``--encodings`` names; the panel's for None.

    Raises:
        CommandError: a name is no encoding of the panel.
    """
    given = None if names is None else names.split(",")
    _check("--encodings", given, set(panel.encodings))
    return [encoding for encoding in panel.encodings if given is None or encoding in given]


def _names(method: Method) -> set[str]:
    return {method.name, f"{method.version}/{method.name}"}


def _check(option: str, given: list[str] | None, known: set[str]) -> None:
    wrong = sorted(set(given or ()) - known)
    if wrong:
        raise CommandError(f"{option}: {', '.join(wrong)} is none of {', '.join(sorted(known))}.")
