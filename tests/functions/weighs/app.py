from pathlib import Path

import samovar as sv


@sv.function(name="weighs", weights=sv.Weights("model"), example={"prefix": ""})
class Weighs:
    """Says what is in its weight file."""

    def load(self, weights: Path, device: str) -> None:
        self.content = (weights / "content.txt").read_text()

    def __call__(self, prefix: str) -> str:
        return prefix + self.content
