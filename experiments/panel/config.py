"""Settings of a panel's YAML: data, privacy, ε grid, and for every method its grid of settings and the chosen ones.

The part below ``_MARK`` is written by ``choose``; everything above it is a person's, comments included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from dpmcmc.config import ConfigError
from experiments.figure_files import FigureSection, checked, text_of

_MARK = "# Chosen by `python -m experiments.fig3_2 choose`; written by it, line by line. Not for editing."

#: Settings of one run of one method.
Settings = dict[str, Any]
#: version -> method -> encoding -> ε -> settings.
Chosen = dict[str, dict[str, dict[str, dict[float, Settings]]]]


class Reference(FigureSection):
    """Length of the non-private NUTS run."""

    chains: int = Field(4, gt=0, description="Independent chains.")
    warmup: int = Field(200, gt=0, description="Transitions before the first draw.")
    draws: int = Field(250, gt=0, description="Draws kept of each chain.")
    thin: int = Field(1, gt=0, description="Transitions from one draw to the next.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens; every method stays."""

    epsilons: list[float] = Field(description="Some of the panel's.")
    repeats: int = Field(gt=0, description="Runs of each ε of a method.")
    encodings: list[str] = Field(description="Some of the panel's.")
    reference: Reference = Field(description="Shorter chains.")
    transitions: int = Field(gt=0, description="NUTS transitions before a one-sample draw.")
    printed_passes: float = Field(gt=0, description="Passes of the printed samplers.")


class Panel(FigureSection):
    """One panel of Figure 3.2."""

    name: str = Field(description="Names files.")
    data: str = Field(description="Registered data set.")
    encodings: list[str] = Field(description="Feature encodings; each gives a picture.")
    delta: float = Field(gt=0, lt=1, description="δ, below 1/N.")
    adjacency: str = Field("replace_one", description="Definition of a neighbour.")
    epsilons: list[float] = Field(description="ε grid.")
    repeats: int = Field(10, gt=0, description="Runs of each ε of a method.")
    prior_scale: float = Field(gt=0, description="Prior scale of the model whose posterior is the reference.")
    seed: int = Field(description="Seed of every run, so that the figure can be made again.")
    transitions: int = Field(60, gt=0, description="NUTS transitions before a one-sample draw.")
    printed_passes: float | None = Field(
        None, description="Data passes of the printed samplers; left out: √N, as the thesis has it."
    )
    reference: Reference = Field(default_factory=Reference, description="The non-private posterior.")
    quick: Quick = Field(description="Settings that --quick shortens.")
    choosing_runs: list[int] = Field(
        [1, 3, 9],
        description="Runs of a setting when it is chosen: all of them so often, then the survivors, and so on.",
    )
    choosing_survivors: list[int] = Field([8, 4], description="Settings of a method that go on after each round.")
    grids: dict[str, dict[str, list[dict[str, Any]]]] = Field(
        description="version -> method -> grids: lists are crossed; least_epsilon and most_epsilon bound where one is "
        "tried."
    )
    settings: Chosen = Field(default_factory=dict, description="Chosen settings.")

    def shortened(self) -> Panel:
        """The panel that ``--quick`` runs."""
        body = self.quick
        return self.model_copy(
            update={
                "epsilons": body.epsilons,
                "repeats": body.repeats,
                "encodings": body.encodings,
                "reference": body.reference,
                "transitions": body.transitions,
                "printed_passes": body.printed_passes,
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return all that one task's result depends on, in plain numbers.

        The list of tasks is left out: more repeats, ε or encodings add to a folder. The first encoding is in it, since
        its settings are those of an encoding that has none of its own.
        """
        tasks = {"encodings", "epsilons", "repeats"}
        body = self.model_dump(exclude={"grids", "quick", "choosing_runs", "choosing_survivors", *tasks})
        return json.loads(json.dumps({**body, "first_encoding": self.encodings[0]}))


def load(path: str | Path) -> Panel:
    """Read and check a panel.

    Raises:
        ConfigError: it is no YAML.
        CommandError: naming the file and the key.
    """
    try:
        body = yaml.safe_load(text_of(Path(path)))  # in which keys may be numbers
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())}).") from None
    return checked(Path(path), Panel, body)


def write_settings(path: str | Path, settings: Chosen) -> None:
    """Replace what stands below the mark by these settings, one line for each (method, encoding, ε)."""
    path = Path(path)
    above = path.read_text(encoding="utf-8").partition(_MARK)[0].rstrip()
    lines = ["", "", _MARK, "settings:"]
    for version, methods in settings.items():
        lines.append(f"  {version}:")
        for method, encodings in methods.items():
            lines.append(f"    {method}:")
            for encoding, by_epsilon in encodings.items():
                lines.append(f"      {encoding}:")
                for epsilon, chosen in sorted(by_epsilon.items()):
                    one_line = yaml.safe_dump(chosen, default_flow_style=True, sort_keys=False, width=10_000).strip()
                    lines.append(f"        {epsilon:g}: {one_line}")
    path.write_text(above + "\n".join(lines) + "\n", encoding="utf-8")
