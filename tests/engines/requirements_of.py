"""Print the requirements of an installed package for this machine, but for those whose names match a pattern."""

from __future__ import annotations

import re
import sys
from importlib import metadata

from packaging.requirements import Requirement


def main(package: str, without: str) -> None:
    for text in metadata.requires(package) or []:
        requirement = Requirement(text)
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_wanted and not re.fullmatch(without + r"(-.*)?", requirement.name):
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main(*sys.argv[1:])
