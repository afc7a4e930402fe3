import sys
from pathlib import Path

import samovar as sv


@sv.function(name="prints")
class Prints:
    def load(self, weights: Path, device: str) -> None:
        print("loaded on", device)
        print("and complained", file=sys.stderr)

    def __call__(self, text: str) -> str:
        print("called with", text)
        return text
