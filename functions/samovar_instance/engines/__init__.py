"""Ready-made ways to run a model inside an instance, each a class that authors put `@sv.function` on, or none at all:
`samovar deploy --model FOLDER --task TASK` writes that file for them.

Each engine is a handler class like any author's: `load(weights, device)` and `__call__`, served by the usual runners,
so that cancelling, deadlines, streaming and metrics are those of every function. Engines import torch and transformers
when they are imported, and other packages (vLLM, ONNX Runtime, a Triton server) only when they are used.
"""
