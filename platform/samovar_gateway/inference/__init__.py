"""The Open Inference Protocol, version 2: functions as models, their inputs and outputs as tensors.

core.py      admit a request for a model, ask the function, give its answer: for REST and gRPC alike
bodies.py    from tensors to what instances get, and from their answers back     (pure)
rows.py      the batch dimension: a request of N rows is N items, and back       (pure)
messages.py  requests and answers, free of any encoding                          (pure)
models.py    what a version looks like as a model                                (pure)
json_form.py requests and answers as REST has them, binary tensors included      (pure)
rest.py      the routes below /v2
"""
