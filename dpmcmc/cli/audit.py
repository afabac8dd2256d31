"""``dpmcmc audit CONFIG``: a lower bound on the ε of a config's release, to compare with the ε that it claims.

All records are synthetic: neither the config's data nor any key is read or written. Exit codes: 0, the runs are
consistent with the claim; 1, they contradict it; 2, a user's error.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from dpmcmc import config as config_room
from dpmcmc.audit import AuditReport, audit
from dpmcmc.cli.options import CANARIES, FEATURES, RECORDS, note
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.config import file as config_file
from dpmcmc.engine.mesh import check_devices
from dpmcmc.engine.result import DivergedError
from dpmcmc.errors import InputError, printable
from dpmcmc.mechanisms import DrawError
from dpmcmc.planning.plan import Plan
from dpmcmc.report.lines import rows
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.targets.generalised_linear import GeneralisedLinear


def attack(
    config: str,
    overrides: list[str],
    allow_code: list[str],
    records: int | None,
    features: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a configuration on worst-case synthetic neighbours, and prove a lower bound on its epsilon.

    Args:
        config, overrides, allow_code: of the command line, as for all commands.
        records, features: size of a mechanism's problem, or None for the usual one.
        as_json: whether to print JSON.
        options: of :func:`dpmcmc.audit.audit`, by name.
    """
    keep_compiled_programs()
    check_devices()
    asked = config_file.load(config, overrides, allow_code=allow_code, note=note)
    _check_promise(asked, config)
    if asked.mechanism is not None:
        plan = _plan_of_mechanism(asked, records, features, options)
    elif records is not None or features is not None:
        given = "features" if records is None else "records"
        raise CommandError(f"--{given}: a sampler is audited on its own number of records; leave it out.")
    else:
        plan = config_room.make_plan(asked)
    report = audited(plan, asked.name, options)
    if as_json:
        print(json.dumps({"config": asked.name, **report.to_json()}, indent=2, allow_nan=False))
    else:
        print(rows([(asked.name, report.subject), *report.lines()[1:]]))
    if report.violated:
        raise CommandError(f"{config}: the runs contradict the claimed epsilon; do not rely on it.", code=1)


def audited(plan: Plan, name: str, options: dict[str, Any]) -> AuditReport:
    """Run the audit; a refusal of one of its arguments names the option of the command line.

    Raises:
        CommandError: a run of the audit failed.
        InputError: an option outside its range.
    """
    try:
        return audit(
            plan,
            **options,
            say=lambda text: print(printable(f"{name}: {text}"), file=sys.stderr),
        )
    except (DivergedError, DrawError) as error:
        raise CommandError(f"the audit's own run failed: {error}") from None
    except InputError as error:
        argument = error.about or str(error).partition(": ")[0]
        if argument not in options:
            raise
        option = f"--{argument.replace('_', '-')}"
        said = str(error).removeprefix(argument).lstrip(": ")
        raise type(error)(f"{option}: {said}", option) from None


def _check_promise(config: Config, name: str) -> None:
    """Refuse a config that promises nothing."""
    if config.privacy is None:
        raise CommandError(
            f"{name}: privacy is null, so nothing is claimed of whole records and there is nothing to audit."
        )
    if not config_room.is_secret(config):
        raise CommandError(
            f"{name}: privacy.insecure_noise_seed takes the guarantee away, so there is nothing to audit; "
            "set it to null."
        )


def _plan_of_mechanism(config: Config, records: int | None, features: int | None, options: dict[str, Any]) -> Plan:
    """Return the plan of a mechanism on a problem of fewer records and features, at the config's promise.

    Raises:
        CommandError: an option that does not apply.
    """
    if options["steps"] is not None:
        raise CommandError("--steps: only a sampler's run can be shortened; leave it out.")
    known = config_room.describe_data(config).num_records
    assert known is not None
    asked = min(RECORDS, known) if records is None else records
    if not 1 <= asked <= known:
        raise CommandError(f"--records: must lie in 1..{known}, the config's number of records, got {asked}.")
    plan = config_room.make_plan(config, num_records=asked)
    if plan.release is None or not isinstance(plan.target, GeneralisedLinear):
        return plan
    many = options["method"] == "one_run"
    usual = min(options["canaries"] or CANARIES, asked) if many else FEATURES
    assert config.privacy is not None
    assert config.privacy.epsilon is not None
    return plan.mechanism.plan(
        dataclasses.replace(plan.target, num_features=features or usual),
        num_records=asked,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        adjacency=config.privacy.adjacency,
    )
