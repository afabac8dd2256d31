"""Write configs/schema.json, the JSON schema of a config, and the line of every shipped config that names it.

python scripts/config_schema.py          write
python scripts/config_schema.py --check  exit 1 where the file is out of date, or a config lacks the line
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpmcmc.config.for_editors import text
from dpmcmc.config.shipped import HEADER

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
SCHEMA = "schema.json"


def wanted() -> dict[Path, str]:
    """File -> its text."""
    files = {CONFIGS / SCHEMA: text()}
    for config in sorted(CONFIGS.glob("*.yaml")):
        lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
        own = [line for line in lines if not line.startswith(HEADER)]
        files[config] = "".join([f"{HEADER}{SCHEMA}\n", *own])
    return files


def main() -> int:
    stale = {
        file: content
        for file, content in wanted().items()
        if not file.exists() or file.read_text(encoding="utf-8") != content
    }
    if "--check" not in sys.argv[1:]:
        for file, content in stale.items():
            file.write_text(content, encoding="utf-8")
        return 0
    for file in stale:
        print(f"{file} is out of date: run python scripts/config_schema.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
