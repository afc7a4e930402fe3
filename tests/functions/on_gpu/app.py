from pathlib import Path
from typing import Any, Literal

import torch
from transformers import BertModel

import samovar as sv
from samovar.torch import load_pretrained


@sv.function(name="on-gpu", resources=sv.Resources(gpus=1), example={"deed": "embed"})
class OnGpu:
    def load(self, weights: Path, device: str) -> None:
        self.device = device
        self.net = load_pretrained(weights, BertModel, device)
        self.reference = BertModel.from_pretrained(weights).to(device).eval()

    @torch.inference_mode()
    def __call__(self, deed: Literal["embed", "device", "out_of_memory", "assert"]) -> Any:
        if deed == "device":
            return sorted({str(tensor.device) for tensor in (*self.net.parameters(), *self.net.buffers())})
        if deed == "out_of_memory":
            return torch.empty(2**50, device=self.device).numel()
        if deed == "assert":
            # an index beyond the table: a device-side assert, after which the context is beyond use
            table = torch.ones(4, 4, device=self.device)
            return torch.nn.functional.embedding(torch.tensor([99], device=self.device), table).sum().item()
        ids = torch.arange(10, device=self.device).view(1, 10)
        return torch.equal(self.net(input_ids=ids)[0], self.reference(input_ids=ids)[0])
