"""Precision, compilation and runtimes of a version's models, declared on the function and built once, at deploy.

    @sv.function(precision=sv.Precision("bf16"), compile="inductor", example=…)

`options.py` says what can be declared, and what of it together (pure). `session.py` is what a load finds: the instance
opens one around the author's `load`, and `samovar.torch.load_pretrained` asks it what to make of each model.
`models.py` carries it out, with `int8.py`, `inductor.py`, `onnx.py` and `tensorrt.py`, which import torch and more, and
only when that is declared. Outside of an instance nothing is declared, and models are what the author's code makes.
"""
