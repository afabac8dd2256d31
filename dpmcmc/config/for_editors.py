"""JSON schema of a config, by which an editor completes keys, shows what they mean, and marks what is misspelt.

It is made from the models that validate a config (``model.py``), so it says the same of each section. Rules between
sections are not in it: ``dpmcmc plan`` checks them.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from dpmcmc.config.model import Config


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a config, draft 2020-12."""
    return {"$schema": GenerateJsonSchema.schema_dialect, **Config.model_json_schema()}


def text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
