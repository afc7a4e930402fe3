from pathlib import Path

import samovar as sv


@sv.function(name="prints")
class Prints:
    def load(self, weights: Path, device: str) -> None:
        print("loaded on", device)

    def __call__(self, text: str) -> str:
        print("called with", text)
        return text
