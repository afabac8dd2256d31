"""``python -m dpmcmc.audit CONFIG``: a lower bound on the ε of what a config really releases, beside the claimed one.

All records are synthetic: neither the config's data nor any key is read or written. Exit code 0 where the runs are
consistent with the claim, 1 where they contradict it or, by an unproved estimate, seem to, 2 for a user's error.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from dpmcmc import config as config_room
from dpmcmc import config_file
from dpmcmc.cache import keep_compiled_programs
from dpmcmc.command import CommandError, Parser, add_allow_code, command
from dpmcmc.config import Config
from dpmcmc.engine import DivergedError
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import DrawError, MechanismPlan
from dpmcmc.planning import Plan
from dpmcmc.privacy.audit import METHODS, audit
from dpmcmc.privacy.audit.procedure import CANARIES, RUNS, TARGETS

#: Size of the problem that a one-shot mechanism is audited on: a run of it reads all records.
_RECORDS, _FEATURES, _MOST_FEATURES = 500, 2, 100_000


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(
        prog="python -m dpmcmc.audit",
        description="Run a configuration on worst-case synthetic neighbours and bound its epsilon from below.",
    )
    out.add_argument("config", help="YAML file, for example configs/adult.yaml")
    out.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
    add_allow_code(out)
    out.add_argument("--method", choices=METHODS, default="gdp", help="gdp is an estimate, the others are proved")
    out.add_argument("--runs", type=int, help=f"of each of two data sets (default {RUNS})")
    out.add_argument("--confidence", type=float, default=0.95)
    out.add_argument("--steps", type=int, help="audit only the first steps of a sampler, against what those cost")
    out.add_argument("--target", choices=TARGETS, default="probe", help="of a sampler: a linear probe, or the config's")
    out.add_argument("--records", type=int, help=f"of a mechanism's problem (default {_RECORDS}, at most the config's)")
    out.add_argument("--features", type=int, help=f"of a mechanism's problem (default {_FEATURES})")
    out.add_argument("--canaries", type=int, help=f"of one_run (default {CANARIES})")
    out.add_argument("--bins", type=int, default=10, help="of histogram")
    out.add_argument("--alpha", type=float, default=0.05, help="resolution of histogram in delta")
    out.add_argument("--at-epsilon", type=float, help="where histogram tests the claimed curve (default: its epsilon)")
    out.add_argument("--seed", type=int, help="make the audit reproducible; it holds no secret")
    out.add_argument("--json", action="store_true", help="print the report as JSON")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    keep_compiled_programs()
    config = config_file.load(arguments.config, arguments.set, allow_code=arguments.allow_code)
    plan = planned(config, arguments)
    try:
        report = audit(
            plan,
            method=arguments.method,
            runs=arguments.runs,
            confidence=arguments.confidence,
            target=arguments.target,
            steps=arguments.steps,
            canaries=arguments.canaries,
            bins=arguments.bins,
            alpha=arguments.alpha,
            at_epsilon=arguments.at_epsilon,
            seed=arguments.seed,
            say=lambda text: print(f"{config.name}: {text}", file=sys.stderr),
        )
    except (DivergedError, DrawError) as error:
        raise CommandError(f"the audit's own run failed: {error}") from None
    except InputError as error:
        raise type(error)(_with_option(str(error))) from None
    if arguments.json:
        print(json.dumps({"config": config.name, **report.to_json()}, indent=2, allow_nan=False))
    else:
        print(config.name)
        print(report)
    if report.verdict == "suspicious":
        raise CommandError(
            f"{arguments.config}: the estimate is above the claimed epsilon, which contradicts it only if scores are "
            "Gaussian; confirm with --method clopper_pearson or histogram.",
            code=1,
        )
    if report.violated:
        raise CommandError(f"{arguments.config}: the runs contradict the claimed epsilon; do not rely on it.", code=1)


def planned(config: Config, arguments: Any) -> Plan | MechanismPlan:
    """The config's plan; that of a mechanism on a problem of fewer records and features, at the same promise.

    Raises:
        CommandError: no guarantee to audit, or an option that does not apply.
    """
    if config.privacy is None:
        raise CommandError(f"{arguments.config}: privacy is null, so nothing is claimed and there is nothing to audit.")
    if not config_room.is_secret(config):
        raise CommandError(
            f"{arguments.config}: privacy.insecure_noise_seed takes the guarantee away, so there is nothing to audit; "
            "set it to null."
        )
    if config.mechanism is None:
        for name in ("records", "features"):
            if getattr(arguments, name) is not None:
                raise CommandError(f"--{name}: a sampler is audited on its own number of records; leave it out.")
        return config_room.make_plan(config)
    for name in ("steps",):
        if getattr(arguments, name) is not None:
            raise CommandError(f"--{name}: only a sampler's run can be shortened; leave it out.")
    known = config_room.describe_data(config).num_records
    assert known is not None
    records = min(_RECORDS, known) if arguments.records is None else arguments.records
    if not 1 <= records <= known:
        raise CommandError(f"--records: must lie in 1..{known}, the config's number of records, got {records}.")
    plan = config_room.make_plan(config, num_records=records)
    assert isinstance(plan, MechanismPlan)
    many = arguments.method == "one_run"
    if arguments.features is not None and not 1 <= arguments.features <= _MOST_FEATURES:
        raise CommandError(f"--features: must lie in 1..{_MOST_FEATURES}, got {arguments.features}.")
    features = arguments.features or (min(arguments.canaries or CANARIES, records) if many else _FEATURES)
    if not hasattr(plan.target, "num_features"):
        return plan
    assert config.privacy.epsilon is not None
    return plan.mechanism.plan(
        dataclasses.replace(plan.target, num_features=features),
        num_records=records,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        adjacency=config.privacy.adjacency,
    )


def _with_option(message: str) -> str:
    """An argument's name as the option it is on the command line."""
    name, colon, rest = message.partition(": ")
    return f"--{name.replace('_', '-')}: {rest}" if colon and name in _OPTIONS else message


_OPTIONS = ("method", "runs", "confidence", "steps", "target", "canaries", "bins", "alpha", "at_epsilon", "seed")


if __name__ == "__main__":
    sys.exit(main())
