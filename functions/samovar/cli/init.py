"""`samovar init NAME`: a folder with a function that works at once, to be changed into one's own."""

from __future__ import annotations

from pathlib import Path

import click

from samovar.cli.session import Session, verb
from samovar.errors import Conflict, DeployRefused
from samovar.spec import check_name

APP = '''"""{name}: a function that works as it is. Change it into yours."""

from pathlib import Path
from typing import TypedDict

import samovar as sv


class Answer(TypedDict):
    text: str
    words: int


@sv.function(name="{name}", example={{"text": "tea is ready"}})
class {cls}:
    """Clients send {{"text": "…"}}. `load` runs once per instance, before its first call."""

    def load(self, weights: Path, device: str) -> None:
        self.greeting = "you said"

    def __call__(self, text: str) -> Answer:
        return {{"text": f"{{self.greeting}}: {{text}}", "words": len(text.split())}}
'''

README = """# {name}

```
samovar deploy app.py
samovar invoke {name} --json '{{"text": "tea is ready"}}' -v
```

- Parameters of `__call__` are the fields of the JSON body; their type hints check it.
- `weights=sv.Weights("model")` uploads the folder `model` beside app.py and gives `load` its path.
- `batch=sv.Batch(max_size=16)` and `text: list[str]` let many calls share one forward; clients change nothing.
- `samovar logs {name} -f` shows what your code prints.
"""


@click.command()
@click.argument("name")
@verb(connects=False)
def init(session: Session, name: str) -> None:
    """Write the folder NAME with a working function called NAME."""
    folder = Path(name)
    function = check_name(folder.name)
    if folder.exists():
        raise Conflict(f"{folder} exists already; nothing was changed")
    cls = "".join(part.capitalize() for part in function.split("-"))
    if not cls.isidentifier():
        cls = f"Function{cls}"
    files = {"app.py": APP.format(name=function, cls=cls), "README.md": README.format(name=function)}
    try:
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_text(content)
    except OSError as error:
        raise DeployRefused(f"cannot write {folder}: {error.strerror}") from error
    data = {"name": function, "folder": str(folder), "files": sorted(files)}
    session.emit(data, lambda: f"wrote {folder}/app.py; next: samovar deploy {folder}/app.py")
