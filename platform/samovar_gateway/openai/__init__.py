"""OpenAI's API in front of functions that declare a task: /v1/models, chat completions, completions, embeddings.

    body ─► fields ─► requests, messages ─► GenerationInput ─► the function, as any invocation (`calling.Caller`)
    answer ◄── answers, logprobs ◄── GenerationOutput, one by one ◄── pieces
    body ─► vectors ─► one input each ─► the function, batched by the instance ─► vectors ─► answer
    whatever goes wrong ─► problems ─► OpenAI's error object

A translation and no more: text, tokens, templates and stops are the instance's business, admission, rate limits,
queues, breakers and records those of every invocation. `routes.py` is the ASGI handler of it all.
"""
