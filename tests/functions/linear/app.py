from pathlib import Path
from typing import Literal

import torch

import samovar as sv


@sv.function(name="linear", example={"rows": 4})
class Linear:
    """A product large enough that torch uses all the threads it may."""

    def load(self, weights: Path, device: str) -> None:
        torch.manual_seed(0)
        self.matrix = torch.randn(768, 768)
        self.big = torch.ones(24_000_000)  # 96 MB that every fork of a template shares
        self.calls = 0

    def __call__(self, rows: int, mode: Literal["product", "threads", "random", "big"] = "product") -> float:
        self.calls += 1
        if mode == "threads":
            return float(torch.get_num_threads())
        if mode == "random":
            return float(torch.rand(1))
        if mode == "big":
            return float(self.big.sum())
        with torch.inference_mode():
            return float((self.matrix[:rows] @ self.matrix).abs().sum())
