import random
from pathlib import Path
from typing import Literal

import torch

import samovar as sv


@sv.function(name="draws", example={"generator": "torch"})
class Draws:
    """Draws a number and seeds nothing."""

    def load(self, weights: Path, device: str) -> None:
        pass

    def __call__(self, generator: Literal["torch", "python"]) -> float:
        print("draws from", generator)
        return float(torch.rand(1)) if generator == "torch" else random.random()
