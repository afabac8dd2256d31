"""What a YAML may say, and the Plan it stands for.

Unknown keys, wrong types and impossible values are errors that name the YAML path. ``docs/config.md`` is
generated from these models.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dpmcmc import data as data_room
from dpmcmc.data import DataSpec
from dpmcmc.planning import Plan, Privacy, plan
from dpmcmc.privacy import FixedSize, Full, Poisson
from dpmcmc.privacy.subsampling import Sampling
from dpmcmc.samplers import SAMPLERS, SCHEDULES
from dpmcmc.targets import TARGETS


class ConfigError(ValueError):
    """One sentence for the person who wrote the YAML."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataConfig(_Model):
    """Which records. A registered ``name``, or the ``path`` of your own .npz file."""

    name: str | None = Field(None, description="adult | abalone | two_normals | breast_cancer.")
    path: str | None = Field(None, description="Your own .npz, relative to the config file.")
    encoding: Literal["public", "linear"] = Field(
        "public", description="Feature encoding of a registered set; every constant in it is public."
    )
    standin: Literal["allow", "refuse"] = Field(
        "refuse",
        description="Whether a generated set of the same shape may replace files that cannot be had.",
    )
    x: str = Field("x", description="Name of the feature array (N, d) in your .npz.")
    y: str = Field("y", description="Name of the label array (N,) in your .npz.")
    row_bound: float | None = Field(None, description="Public bound on the l2 norm of your rows.")
    test_fraction: float = Field(0.0, description="Share of your rows held out for testing.")
    num_records: int | None = Field(
        None, description="Public number of training records of your file; needed to plan without reading it."
    )
    public: bool = Field(
        False, description="Declare your file public: its test metrics and non-private fits may be released."
    )


class LogisticRegressionConfig(_Model):
    """Bayesian logistic regression with a Gaussian prior."""

    name: Literal["logistic_regression"]
    prior_scale: float = Field(1.0, gt=0, description="Prior standard deviation of each coefficient.")


class CustomConfig(BaseModel):
    """Your own target or sampler: ``module:attribute``, called with the remaining keys."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="``module:attribute``.")


class PolynomialConfig(_Model):
    """step_size_t = a (b + t)^-gamma."""

    schedule: Literal["polynomial"]
    a: float = Field(gt=0, description="Scale.")
    b: float = Field(1.0, gt=0, description="Offset, in steps.")
    gamma: float = Field(0.55, ge=0, description="Decay.")


class SGLDConfig(_Model):
    """Stochastic-gradient Langevin dynamics."""

    name: Literal["sgld"]
    step_size: Annotated[float, Field(gt=0)] | Literal["auto"] | PolynomialConfig = Field(
        description="Learning rate on the MEAN loss (the step on the full potential is step_size / N); auto: the "
        "largest constant step at which the private run keeps its temperature."
    )
    temperature: float = Field(1.0, ge=0, description="Posterior temperature; 1 is the posterior.")


class PoissonConfig(_Model):
    """Each record takes part independently."""

    scheme: Literal["poisson"]
    batch_size: float = Field(gt=0, description="Expected batch size, a public constant.")


class FixedSizeConfig(_Model):
    """A uniform subset of exactly batch_size records."""

    scheme: Literal["fixed_size"]
    batch_size: int = Field(gt=0, description="Batch size.")


class FullConfig(_Model):
    """All records in every step."""

    scheme: Literal["full"]


class PrivacyConfig(_Model):
    """What is promised. Write ``privacy: null`` for plain SG-MCMC without a guarantee."""

    epsilon: float | None = Field(None, gt=0, description="Target ε; left out with calibrator free, which reports it.")
    delta: float = Field(gt=0, lt=1, description="Total δ, below 1/N.")
    adjacency: Literal["replace_one", "add_remove", "zero_out"] = Field(
        "replace_one", description="What a neighbour is: one record replaced, present or absent, or zeroed."
    )
    release: Literal["trace"] = Field("trace", description="trace: every iterate may be published.")
    accountant: Literal["pld", "rdp", "advanced"] = Field("pld", description="How ε is computed.")
    calibrator: Literal["numeric", "closed_form", "free"] = Field("numeric", description="How the noise is chosen.")
    clip: float = Field(1.0, gt=0, description="l2 norm each record's gradient is clipped to.")
    insecure_noise_seed: int | None = Field(
        None, description="Makes a run bit-reproducible, and takes its guarantee away."
    )


class RunConfig(_Model):
    """How long. Give ``passes`` or ``steps``."""

    passes: float | None = Field(None, gt=0, description="Passes over the data: steps = ceil(passes·N/b).")
    steps: int | None = Field(None, gt=0, description="Steps per chain.")
    chains: int = Field(1, gt=0, description="Independent chains; each is charged.")
    burn_in: float = Field(0.5, ge=0, lt=1, description="Share of the steps before the first kept draw.")
    thin: int = Field(1, gt=0, description="One draw is kept every thin steps.")

    @model_validator(mode="after")
    def _one_length(self) -> RunConfig:
        if (self.passes is None) == (self.steps is None):
            raise ValueError("give exactly one of passes and steps")
        return self


class Config(_Model):
    """A whole configuration file."""

    name: str = Field(pattern=r"^[\w.-]+$", description="Names the run folder.")
    data: DataConfig
    target: LogisticRegressionConfig | CustomConfig
    sampler: SGLDConfig | CustomConfig
    sampling: Annotated[PoissonConfig | FixedSizeConfig | FullConfig, Field(discriminator="scheme")]
    privacy: PrivacyConfig | None = Field(description="null: plain SG-MCMC, no guarantee.")
    run: RunConfig

    @model_validator(mode="before")
    @classmethod
    def _short_names(cls, values: Any) -> Any:
        """``target: my_module:make_target`` is short for ``target: {name: my_module:make_target}``."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for key in ("target", "sampler"):
            if isinstance(values.get(key), str):
                values[key] = {"name": values[key]}
        return values


# --- reading ------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number and a repeated key an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Refuse a key that is given twice: YAML would silently keep the last."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConfigError(f"key {key!r} is given twice{_line(key_node.start_mark)}; keep one of them.")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def _line(mark: Any) -> str:
    return f" in line {mark.line + 1}" if mark is not None else ""


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; a syntax error becomes one sentence.

    Raises:
        ConfigError: not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "not valid YAML"
        line = _line(getattr(error, "problem_mark", None))
        raise ConfigError(f"{where}: {problem}{line}; mend the YAML there.") from None


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read and validate a configuration.

    Args:
        path: YAML file.
        overrides: ``a.b=value`` strings, values in YAML, applied in order.

    Raises:
        ConfigError: one sentence naming the file and the YAML path.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such config file; give the path of a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a YAML text file.") from None
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: a config is a mapping with the keys {', '.join(Config.model_fields)}; this file holds "
            f"{'nothing' if values is None else type(values).__name__}."
        )
    for override in overrides or []:
        _apply(values, override)
    try:
        config = Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: {_sentence(error, values)}") from None
    return config.model_copy(update={"data": _with_base(config.data, path.parent)})


def _with_base(data: DataConfig, folder: Path) -> DataConfig:
    if data.path is None or Path(data.path).is_absolute():
        return data
    return data.model_copy(update={"path": str(folder / data.path)})


def _apply(values: dict, override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override}: write --set section.key=value, for example --set privacy.epsilon=0.5.")
    value = parse_yaml(text, f"--set {key.strip()}")
    place = values
    for part in parts[:-1]:
        following = place.get(part)
        if following is None:
            following = place[part] = {}
        if not isinstance(following, dict):
            raise ConfigError(f"--set {override}: {part} is a value, not a section, in the config.")
        place = following
    place[parts[-1]] = value


def _sentence(error: pydantic.ValidationError, values: dict) -> str:
    """The most telling of pydantic's errors as one sentence with its YAML path."""
    errors = error.errors(include_url=False)
    # A union reports every alternative; prefer those of the alternative the file chose.
    chosen = [e for e in errors if not _foreign(e["loc"], values)] or errors
    first = chosen[0]
    path = ".".join(str(p) for p in _yaml_path(first["loc"], values)) or "the file"
    kind, message, given = first["type"], first["msg"], first.get("input")
    if kind == "extra_forbidden":
        known = _known_keys(first["loc"], values)
        hint = f"; known keys: {', '.join(known)}" if known else ""
        text = f"{path}: unknown key{hint}."
    elif kind == "missing":
        text = f"{path}: this key is required."
    elif kind in ("union_tag_not_found", "union_tag_invalid"):
        text = f"{path}: {message[0].lower()}{message[1:]}."
    else:
        message = re.sub(r"^(Value error|Assertion failed), ", "", message)
        text = f"{path}: {message[0].lower()}{message[1:]}, got {given!r}."
    more = len({tuple(_yaml_path(e["loc"], values)) for e in chosen}) - 1
    return text if more < 1 else f"{text} ({more} more problem{'s' * (more > 1)} after this one.)"


_ALTERNATIVES = {
    "LogisticRegressionConfig": LogisticRegressionConfig,
    "SGLDConfig": SGLDConfig,
    "CustomConfig": CustomConfig,
    "PolynomialConfig": PolynomialConfig,
    "poisson": PoissonConfig,
    "fixed_size": FixedSizeConfig,
    "full": FullConfig,
}


def _foreign(loc: tuple, values: dict) -> bool:
    """Whether an error belongs to a union alternative that the file did not mean."""
    name = values.get(loc[0], {}).get("name") if loc and isinstance(values.get(loc[0]), dict) else None
    custom = isinstance(name, str) and ":" in name
    if "CustomConfig" in loc:
        return not custom
    if custom and len(loc) > 1 and loc[1] in ("LogisticRegressionConfig", "SGLDConfig"):
        return True
    if len(loc) > 2 and loc[:1] == ("sampler",) and "step_size" in loc:
        step = values["sampler"].get("step_size")
        wanted = "PolynomialConfig" if isinstance(step, dict) else "constrained-float"
        if isinstance(step, str):
            wanted = "literal['auto']"
        return wanted not in (str(part) for part in loc)
    return False


def _yaml_path(loc: tuple, values: dict) -> list:
    """pydantic's location without the names of union alternatives."""
    out: list = []
    place: Any = values
    for i, part in enumerate(loc):
        named = part in _ALTERNATIVES or str(part) in ("constrained-float", "literal['auto']", "float")
        inside = isinstance(place, dict) and part in place
        if named and not inside:
            continue
        out.append(part)
        place = place.get(part) if isinstance(place, dict) else None
        del i
    return out


def _known_keys(loc: tuple, values: dict) -> list[str]:
    """Keys allowed beside the unknown one."""
    model: Any = Config
    for part in loc[:-1]:
        if part in _ALTERNATIVES:
            model = _ALTERNATIVES[part]
            continue
        field = model.model_fields.get(part)
        annotation = getattr(field, "annotation", None)
        for candidate in getattr(annotation, "__args__", (annotation,)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
                break
    return list(model.model_fields)


# --- building -----------------------------------------------------------------------------------------


def describe_data(config: Config) -> DataSpec:
    """Public facts about the config's data; opens no data file.

    Raises:
        ConfigError: a user's file without a declared number of records.
    """
    spec = data_room.describe(config.data)
    if spec.num_records is None:
        raise ConfigError(
            "data.num_records: the number of training records of your own file must be declared as a public "
            "constant, because a plan is made without reading the file."
        )
    return spec


def make_plan(config: Config) -> Plan:
    """The Plan a config stands for; reads no record.

    Raises:
        ConfigError: a value that makes no plan, named by its YAML path.
        UnsupportedCombination, CalibrationError: see :func:`dpmcmc.plan`.
    """
    spec = describe_data(config)
    n = spec.num_records
    assert n is not None
    sampling = _sampling(config, n)
    rate = sampling.rate(n)
    steps = config.run.steps if config.run.steps is not None else math.ceil((config.run.passes or 0) / rate)
    burn_in = int(config.run.burn_in * steps)
    if steps - burn_in < config.run.thin:
        raise ConfigError(
            f"run.thin: {config.run.thin} keeps no draw of the {steps - burn_in} steps after burn-in; "
            "lower run.thin or run.burn_in, or take more steps."
        )
    if config.privacy is not None and config.privacy.delta >= 1 / n:
        raise ConfigError(
            f"privacy.delta: {config.privacy.delta:g} is not below 1/N = {1 / n:.3g} for {n} records, so publishing a "
            "random record outright would meet it; use a smaller delta."
        )
    return plan(
        _target(config, spec),
        num_records=n,
        sampler=_sampler(config),
        sampling=sampling,
        steps=steps,
        chains=config.run.chains,
        burn_in=burn_in,
        thin=config.run.thin,
        privacy=_privacy(config),
    )


def _sampling(config: Config, n: int) -> Sampling:
    chosen = config.sampling
    if isinstance(chosen, FullConfig):
        return Full()
    if chosen.batch_size > n:
        raise ConfigError(
            f"sampling.batch_size: {chosen.batch_size:g} is larger than the {n} training records; use at most {n}, or "
            "scheme full."
        )
    return Poisson(chosen.batch_size) if isinstance(chosen, PoissonConfig) else FixedSize(chosen.batch_size)


def _privacy(config: Config) -> Privacy | None:
    if config.privacy is None:
        return None
    values = config.privacy.model_dump(exclude={"insecure_noise_seed"})
    try:
        return Privacy(**values)
    except ValueError as error:
        raise ConfigError(f"privacy: {error}.") from None


def _target(config: Config, spec: DataSpec) -> Any:
    chosen = config.target
    if isinstance(chosen, CustomConfig):
        return _custom("target", chosen)
    bound = spec.row_bound if math.isfinite(spec.row_bound) else None
    return TARGETS[chosen.name](prior_scale=chosen.prior_scale, num_features=spec.num_features, row_bound=bound)


def _sampler(config: Config) -> Any:
    chosen = config.sampler
    if isinstance(chosen, CustomConfig):
        return _custom("sampler", chosen)
    step_size: Any = chosen.step_size
    if isinstance(step_size, PolynomialConfig):
        step_size = SCHEDULES[step_size.schedule](a=step_size.a, b=step_size.b, gamma=step_size.gamma)
    return SAMPLERS[chosen.name](step_size=step_size, temperature=chosen.temperature)


def _custom(section: str, chosen: CustomConfig) -> Any:
    module_name, _, attribute = chosen.name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{section}.name: {chosen.name} cannot be imported ({error}); it is looked for from the current folder."
        ) from None
    try:
        return factory(**(chosen.model_extra or {}))  # type: ignore[operator]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{section}: {chosen.name} refused the keys {sorted(chosen.model_extra or {})} ({error})."
        ) from None


def dump(config: Config) -> str:
    """The resolved config as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
