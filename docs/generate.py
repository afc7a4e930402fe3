"""Write docs/settings.md from the settings structs, so that the page cannot lag behind the code (a test compares)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from samovar import settings

PAGE = Path(__file__).parent / "settings.md"
PROCESSES = [
    ("samovar up", "samovar_up.settings", "UpSettings"),
    ("Gateway, `python -m samovar_gateway`", "samovar_gateway.settings", "GatewaySettings"),
    ("Job worker, `python -m samovar_jobs`", "samovar_jobs.settings", "JobsSettings"),
    ("Pool manager, `python -m samovar_pool`", "samovar_pool.settings", "PoolSettings"),
]
HEAD = """# Settings
Each process reads its settings once, at its start: flag, then `SAMOVAR_<FIELD>` variable, then the JSON file of
`--config` (or `SAMOVAR_CONFIG`), then the default. A flag is the field's name with dashes. A bad value names its key;
an unknown `SAMOVAR_` variable stops the process. Secrets print as stars. Written by `make docs`; do not edit.
"""


def page() -> str:
    """Return the page's text."""
    parts = [HEAD]
    for title, module, name in PROCESSES:
        cls = getattr(importlib.import_module(module), name)
        parts.append(f"\n## {title}\n\n| variable | default | what it sets |\n|---|---|---|\n")
        home = str(Path.home())
        parts += [
            f"| `{variable}` | `{default.replace(home, '~')}` | {description} |\n"
            for variable, default, description in settings.describe(cls)
        ]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"wrote {PAGE}\n")
