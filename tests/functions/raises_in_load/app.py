from pathlib import Path

import samovar as sv


@sv.function(name="raises-in-load")
class RaisesInLoad:
    def load(self, weights: Path, device: str) -> None:
        raise RuntimeError("the kettle is empty")

    def __call__(self, text: str) -> str:
        return text
