"""Write docs/config.md from the models in dpmcmc/config/model.py.

python scripts/config_reference.py          write
python scripts/config_reference.py --check  exit 1 where the page is out of date
"""

from __future__ import annotations

import sys
import types
import typing
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dpmcmc.config import model as config
from dpmcmc.config import sections as schema

PAGE = Path(__file__).resolve().parents[1] / "docs" / "config.md"
SECTIONS = {
    "data": [config.DataConfig],
    "target": [*config.TARGET_SECTIONS.values(), config.CustomConfig],
    "sampler": [*config.SAMPLER_SECTIONS.values()],
    "step_size schedules": [*schema.SCHEDULE_SECTIONS.values()],
    "mechanism": [*config.MECHANISM_SECTIONS.values()],
    "sampling": [config.PoissonConfig, config.FixedSizeConfig, config.FullConfig],
    "privacy": [config.PrivacyConfig],
    "run": [config.RunConfig, config.MeshConfig],
}


def type_name(annotation: object) -> str:
    """A type as a person would write it in YAML."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " \\| ".join(str(a) for a in typing.get_args(annotation))
    if origin is typing.Annotated:
        return type_name(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return " \\| ".join(dict.fromkeys(type_name(a) for a in typing.get_args(annotation)))
    if origin is list:
        return "list"
    if annotation is type(None):
        return "null"
    names = {"float": "number", "int": "whole number", "str": "text", "bool": "true or false"}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return names.get(getattr(annotation, "__name__", str(annotation)), str(annotation))


def table(model: type[BaseModel]) -> list[str]:
    """Rows of one model."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        limits = [
            f"{symbol} {getattr(part, attribute)}"
            for part in field.metadata
            for attribute, symbol in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
            if getattr(part, attribute, None) is not None
        ]
        kind = type_name(field.annotation) + (f" ({', '.join(limits)})" if limits else "")
        default = (
            "required" if field.default is PydanticUndefined else "null" if field.default is None else field.default
        )
        rows.append(f"| `{name}` | {kind} | {default} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return rows


def page() -> str:
    """The whole page."""
    lines = [
        "# Configuration reference",
        "",
        "Generated from `dpmcmc/config/model.py` by `python scripts/config_reference.py`; do not edit by hand.",
        "Unknown keys are errors. Values of `--set a.b=VALUE` are YAML; `1e-5` is a number.",
        "",
        "`name` (required) names the run folder. `target` and `sampler` may be `my_module:attribute`, found from the",
        "current folder and called with the section's other keys. The attribute is a class with the methods of a",
        "target or a sampler, or a function whose return annotation is such a class; nothing else is called. A config",
        "that lies in a run folder, `--resume` included, imports such a module only with `--allow-code my_module`.",
        "",
    ]
    for section, models in SECTIONS.items():
        lines += [f"## {section}", ""]
        for model in models:
            lines += [(model.__doc__ or "").strip(), "", *table(model), ""]
    return "\n".join(lines)


def main() -> int:
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            print(f"{PAGE} is out of date: run python scripts/config_reference.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
