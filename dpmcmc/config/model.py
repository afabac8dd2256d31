"""Keys of a YAML: a section for each constructor of a run, and rules between sections.

Unknown keys, wrong types and impossible values are errors that name the YAML path. ``docs/config.md`` is generated from
the same constructors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import BaseModel, Field, model_validator

from dpmcmc.config.named_code import PATTERN
from dpmcmc.config.refusals import MOST_PROBLEMS, ConfigError, with_yaml_path
from dpmcmc.config.run_section import Run
from dpmcmc.config.sections import Derived, OpenSection, OwnName, Section, choice, derived, keys
from dpmcmc.config.yaml_writing import to_yaml
from dpmcmc.data import DataRequest
from dpmcmc.errors import (
    Checked,
    DataError,
    InputError,
)
from dpmcmc.mechanisms import MECHANISMS, OPS, NoiseAware
from dpmcmc.mechanisms.hybrid import Share
from dpmcmc.planning.private_metric import PrivateMetric
from dpmcmc.privacy.accounting.own import is_ones_own
from dpmcmc.privacy.accounting.promise import CalibratorName, Privacy, TraceAccountant
from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson
from dpmcmc.privacy.ledger.place import Address, place
from dpmcmc.privacy.query.randomised_response import LEAST_EPSILON, MOST_EPSILON
from dpmcmc.samplers import SAMPLERS
from dpmcmc.targets import TARGETS

SCHEMES = {"poisson": Poisson, "fixed_size": FixedSize, "full": Full}


@dataclass(frozen=True)
class HybridStart(OPS):
    """One posterior draw at a share of epsilon, then the config's sampler from there with the rest.

    Args:
        share: share of ε that the posterior draw alone may cost.
    """

    share: Share = 0.5
    # A hybrid starts at one draw, so this is no key.
    draws: int = field(default=1, kw_only=True)


#: Section of a hybrid: that of its posterior draw, and the draw's share of ε.
ONE_SHOT: Mapping[str, type] = {**MECHANISMS, "hybrid": HybridStart}


@dataclass(frozen=True)
class Labels(Checked):
    """How labels are read. Features are then taken as public: nothing protects them.

    Args:
        randomised: ε of one label. Every label is changed at random once, and no more is read of it. The run has 1,000
            draws from the posterior given these labels, which cost nothing more.
    """

    randomised: Annotated[float, Ge(LEAST_EPSILON), Le(MOST_EPSILON)]


@dataclass(frozen=True)
class Records(DataRequest):
    """Source of the records: a registered ``name``, or the ``path`` of your own .npz file or folder of .npy files.

    Args:
        generated: declare that a program generated the rows of your file, so that nobody's data are in them;
            ``report.html`` says so.
        labels: randomise every label at an ε of its own, ``{randomised: 1.0}``, with ``privacy: null``: a promise about
            one label, and none about features; null: the promise is that of ``privacy``.
        settings_chosen: how the settings, ranges and levels of this config were chosen. You vouch for it, and
            ``report.html`` quotes you; null: nobody vouches, and it says that.
    """

    generated: bool = False
    labels: Labels | None = None
    settings_chosen: Literal["without_these_records", "on_these_records"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.generated and self.path is None:
            raise DataError.at(
                "generated",
                f"is for your own file, and {self.name} is known; leave it out",
            )


@dataclass(frozen=True)
class Promise(Privacy):
    """Promised guarantee. Write ``privacy: null`` for plain SG-MCMC without a guarantee.

    Args:
        accountant: how ε is computed; a text names your own function ``module:attribute``. It is called with
            (events, adjacency, delta), and its annotation says that it returns a float. Its ε is your word.
        calibrator: how the noise is chosen; a text names your own function ``module:attribute``. It
            is called with (queries, promise), and its annotation says that it returns a float or an array.
        insecure_noise_seed: makes a run bit-reproducible, and takes its guarantee away.
        ledger: budget ledger of the data set, a file relative to the config file or ``postgresql://USER@HOST/DATABASE``;
            the run is charged to it. A URL holds no password: set PGPASSWORD or PGPASSFILE.
    """

    # A function's name is a string here; ``plans.py`` finds the function.
    accountant: TraceAccountant | OwnName = "pld"
    calibrator: CalibratorName | OwnName = "numeric"
    insecure_noise_seed: int | None = None
    ledger: str | None = None

    def __post_init__(self) -> None:
        if self.ledger is not None:
            try:
                place(self.ledger)
            except InputError as error:
                raise InputError(f"ledger: {error}", "ledger") from None
        super().__post_init__()


class CustomSection(OpenSection):
    """Your own target or sampler: ``module:attribute``, called with the remaining keys."""

    name: str = Field(
        pattern=PATTERN,
        description="``module:attribute``: a class, or a function whose return annotation is one.",
    )


if TYPE_CHECKING:  # a section has the attributes of the object that it builds

    class Named(Derived):
        """One of several constructors, by name."""

        name: str

    class Scheme(Derived):
        """One of several ways to sample."""

        scheme: str

    DataSection = Records
    PrivacySection = Promise
    RunSection = Run
    MetricSection = PrivateMetric
    TargetSection = Named | CustomSection
    SamplerSection = Named | CustomSection
    MechanismSection = Named
    EndSection = Named
    SamplingSection = Scheme
else:
    DataSection = derived(Records)
    RunSection = derived(Run)
    MetricSection = derived(PrivateMetric)
    PrivacySection = derived(Promise, required=("delta",))
    TargetSection = choice(TARGETS, "name", CustomSection)
    SamplerSection = choice(SAMPLERS, "name", CustomSection)
    MechanismSection = choice(ONE_SHOT, "name")
    EndSection = derived(NoiseAware, "name", "noise_aware")
    SamplingSection = choice(SCHEMES, "scheme")

#: Section -> (key that chooses what it builds, names of what it may be).
CHOICES: dict[str, tuple[str, Mapping[str, type]]] = {
    "sampling": ("scheme", SCHEMES),
    "sampler": ("name", SAMPLERS),
    "target": ("name", TARGETS),
    "mechanism": ("name", ONE_SHOT),
}
#: Section -> what it may build, the most asked for first.
CONSTRUCTORS: dict[str, tuple[type, ...]] = {
    "privacy": (Promise,),
    "run": (Run,),
    "metric": (PrivateMetric,),
    "data": (Records,),
    **{section: tuple(known.values()) for section, (_, known) in CHOICES.items()},
}


def path_of(key: object) -> str:
    """Return ``section.key`` of the first section that has this key; empty where none has."""
    for section, constructors in CONSTRUCTORS.items():
        if any(key == one.name for made in constructors for one in keys(made)):
            return f"{section}.{key}"
    return ""


#: Sections that a mechanism without a sampler has none of, keys of ``run`` that it takes all the same, and keys of
#: ``privacy`` that apply to samplers alone.
OF_CHAINS = ("sampler", "sampling", "metric", "end", "run")
WHERE = frozenset({"device", "engine", "mesh", "trusted_network"})
OF_SAMPLERS = ("release", "accountant", "calibrator", "clip", "clipping")


class Config(Section):
    """A whole configuration file."""

    name: str = Field(pattern=r"^[\w.-]+$", description="Names the run folder.")
    data: DataSection
    target: TargetSection = Field(description="Model: its loss and its prior.")
    mechanism: MechanismSection | None = Field(
        None,
        description="A one-shot mechanism, in place of sampler, sampling and run; hybrid stands beside them.",
    )
    sampler: SamplerSection | None = Field(None, description="Sampler, and its step; a one-shot mechanism has none.")
    sampling: SamplingSection | None = Field(None, description="How the records of a step are drawn.")
    metric: MetricSection | None = Field(
        None,
        description="Metric that the run releases first; null: gradients are clipped and noised as they are.",
    )
    end: EndSection | Literal["auto"] | None = Field(
        "auto",
        description="How a posterior follows from the path of a run in metric gram, and what is released for it at "
        "the end; auto: as in Python; null: the draws are the chain's own.",
    )
    privacy: PrivacySection | None = Field(description="null: no guarantee about whole records.")
    run: RunSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _noise_of_privatised_records(cls, values: Any) -> object:
        """The noise that records came with is that of a linear regression."""
        match values:
            case {
                "data": {"privatised": {"noise_std": float() | int() as std}},
                "target": {"name": "linear_regression"},
            }:
                return values | {"target": {"noise_scale": std} | values["target"]}
        return values

    @classmethod
    def meant(cls, key: object) -> str:
        """Return which key was meant, one of a section if it has this name."""
        if key == "sweep":
            return " (this is a grid; run it with dpmcmc sweep)"
        path = path_of(key)
        return f" (did you mean {path}?)" if path else super().meant(key)

    @property
    def one_shot(self) -> bool:
        """Whether the config has no sampler: a mechanism alone, or draws given randomised labels."""
        return self.data.labels is not None or (self.mechanism is not None and self.mechanism.name != "hybrid")

    @property
    def where(self) -> Run:
        """Section ``run``, or its defaults, for what it says of devices and workers."""
        return Run() if self.run is None else self.run

    @property
    def noise_seed(self) -> int | None:
        """Seed that takes the guarantee away, or None."""
        return None if self.privacy is None else self.privacy.insecure_noise_seed

    @property
    def ledger(self) -> str | None:
        """Ledger that the run is charged to, or None."""
        return None if self.privacy is None else self.privacy.ledger

    @property
    def not_taken(self) -> tuple[str, ...]:
        """Keys of ``privacy`` that the config's mechanism chooses itself."""
        return OF_SAMPLERS if self.one_shot else ()

    def sections(self, *names: str) -> dict[str, BaseModel | None]:
        """Return sections by name, None where one is not written; a refusal is about a key of its section."""
        every = dict(self)
        return {name: None if every[name] == "auto" else every[name] for name in names}

    def check(self) -> None:
        """Refuse sections that do not go together, and keys of one that do not.

        Raises:
            ConfigError: about the YAML path.
        """
        found = [f"{path}: {said}" for path, said in self._contradictions()]
        if found:
            raise ConfigError(f"{'; '.join(found[:MOST_PROBLEMS])}.", found[0].partition(":")[0])
        for name, section in self.sections("data", "privacy", "run").items():
            with with_yaml_path({name: section}, name):
                if isinstance(section, Derived):
                    section.built()

    def _only_where(self, key: str) -> bool:
        """Whether a section is that of the run, and says nothing but where it computes."""
        run: Any = self.run
        return key == "run" and run.model_fields_set <= WHERE

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield (YAML path, error) pairs: a sampler needs sampling and run, a mechanism has neither, a hybrid has
        all."""
        mechanism = None if self.mechanism is None else self.mechanism.name
        yield from self._labels_beside()
        yield from self._privatised_beside()
        for key, section in self.sections("sampler", "sampling", "run").items():
            if self.one_shot and section is not None and not self._only_where(key):
                but = f" but {', '.join(sorted(WHERE))}" if key == "run" else ""
                method = "data.labels" if self.data.labels is not None else f"mechanism {mechanism}"
                yield key, f"{method} takes none{but}; leave it out"
            if not self.one_shot and section is None:
                yield key, "this key is required"
        if not self.one_shot and self.run is not None and self.run.engine is not None:
            yield (
                "run.engine",
                "a sampler reads rows, and workers compute sums of a table in partitions; leave it out",
            )
        for key, section in self.sections("metric", "end").items() if mechanism is not None else ():
            if section is not None:
                yield key, f"mechanism {mechanism} takes none; leave it out"
        if mechanism is None:
            return
        if self.privacy is None or self.privacy.epsilon is None:
            yield "privacy", "a mechanism needs epsilon and delta"
        said: set[str] = self.privacy.model_fields_set if isinstance(self.privacy, BaseModel) else set()
        for key in self.not_taken:
            if key in said:
                yield (
                    f"privacy.{key}",
                    f"mechanism {mechanism} settles this itself; leave it out",
                )

    def _labels_beside(self) -> Iterator[tuple[str, str]]:
        """Yield (YAML path, error) of what does not go with randomised labels."""
        beside = self.sections("privacy", "mechanism", "metric", "end") if self.data.labels is not None else {}
        for key, section in beside.items():
            if section is not None:
                yield (
                    key,
                    "is for a promise about whole records, and data.labels promises something about one label with "
                    "public features: no run keeps both; set it to null, or leave data.labels out",
                )

    def _privatised_beside(self) -> Iterator[tuple[str, str]]:
        """Yield (YAML path, error) of records that are private already, and what does not go with them."""
        came_with = self.data.privatised
        if came_with is None:
            return
        for path, said in (("privacy", self.privacy), ("data.labels", self.data.labels)):
            if said is not None:
                yield (
                    path,
                    "promises something about records that data.privatised says are private already; set it to null, "
                    "or leave data.privatised out",
                )
        target = dict(self.target) if self.target.name == "linear_regression" else {}
        scale = target.get("noise_scale", came_with.noise_std)
        if came_with.noise_std is not None and scale != came_with.noise_std:
            yield (
                "target.noise_scale",
                f"is {scale:g}, and data.privatised says that noise of std {came_with.noise_std:g} was added to "
                "labels; leave it out, or give the same",
            )


def is_secret(config: Config) -> bool:
    """Return whether the run's noise is secret, which its guarantee needs."""
    return config.noise_seed is None


def modules_of_ones_own(config: Config) -> dict[str, str]:
    """Return key -> ``module:attribute`` for what is the user's: target, sampler, calibrator and accountant."""
    sections = config.sections("target", "sampler")
    names = {key: section.name for key, section in sections.items() if isinstance(section, CustomSection)}
    for key in ("calibrator", "accountant"):
        name = "" if config.privacy is None else str(getattr(config.privacy, key))
        if is_ones_own(name):
            names[f"privacy.{key}"] = name
    return names


def in_database(key: str, path: str) -> bool:
    """Whether a key's value is the URL of a ledger, and no path."""
    return key == "ledger" and isinstance(place(path), Address)


def dump(config: Config, folder: Path) -> str:
    """Return the resolved config as YAML, every default written out; a data path is written relative to ``folder``."""
    values = config.model_dump(mode="json")
    for key in config.not_taken if values["privacy"] else ():
        del values["privacy"][key]
    around = ["metric", "end"]
    absent = ["sampler", "sampling", *around] if config.one_shot else around if config.mechanism else []
    if config.mechanism is None:
        absent.append("mechanism")
    if config.one_shot and config.run is not None:
        values["run"] = {key: values["run"][key] for key in sorted(WHERE)}
    elif config.one_shot:
        absent.append("run")
    for key in absent:
        del values[key]
    for section, key in (("data", "path"), ("privacy", "ledger")):
        path = (values[section] or {}).get(key)
        if path is not None and not in_database(key, path):
            values[section][key] = os.path.relpath(path, folder)
    return to_yaml(values)
