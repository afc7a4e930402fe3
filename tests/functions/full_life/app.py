from pathlib import Path

import samovar as sv


@sv.function(name="full-life", example={"text": "warm"})
class FullLife:
    def load(self, weights: Path, device: str) -> None:
        print("loaded", weights, device)
        self.told = (weights / "told.txt").read_text() if (weights / "told.txt").exists() else ""

    def check(self) -> None:
        if self.told == "unwell":
            raise RuntimeError("the samovar leaks")

    def __call__(self, text: str) -> str:
        print("called", text)
        if self.told == "cold":
            raise ValueError("it stays cold")
        return text + self.told

    def unload(self) -> None:
        print("unloaded")
