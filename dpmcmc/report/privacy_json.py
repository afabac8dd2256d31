"""Content of ``privacy.json``, computed from public facts and released values.

Its digests of the other files are added when a folder is sealed (``storage/run_folder.py``).
"""

from __future__ import annotations

from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.storage.versions import versions


def privacy_json(
    plan: Plan,
    guarantee: Guarantee | None,
    data: dict[str, object] | None = None,
    receipt: Receipt | None = None,
) -> dict[str, object]:
    """Return the content of ``privacy.json``: a reader can check, recompute or compose the guarantee with it."""
    charged = {} if receipt is None else {"ledger": receipt.to_json()}
    stated = plan.describe().facts
    body = guarantee_json(guarantee, str(stated.get("unit", plan.unit)))
    # A loaded plan states the guarantee of its file; the recomputed one takes precedence.
    return (
        body
        | {name: fact for name, fact in stated.items() if name not in body}
        | {"data": stated.get("data", data)}
        | charged
    )


def guarantee_json(guarantee: Guarantee | None, unit: str = "record") -> dict[str, object]:
    """Return a guarantee, or the sentence that there is none, with unit, versions and the ε of the other
    accountants."""
    said = ["No guarantee: privacy was not asked for, or the noise keys of this run are not secret."]
    body: dict[str, object] = dict.fromkeys(("epsilon", "delta", "adjacency", "release", "accountant"))
    body |= {"assumptions": said, "events": []} if guarantee is None else guarantee.to_json()
    cross_check = dict.fromkeys(("advanced", "rdp", "pld")) if guarantee is None else guarantee.cross_check()
    return body | {"unit": unit, "versions": versions(), "cross_check": cross_check}
