"""Our own engine for models that generate: continuous batching over a paged cache, for any decoder of transformers.

    text ─► TextGenerator (engines/text_generation.py)         template, tokens, text, stops, tools
              │  Sequence                 ▲ Token, end
              ▼                           │
            Engine.step: schedule ─► forward ─► sample ─► tell
              scheduler, blocks (pure)    attention    sampling

A step serves every sequence that is running: a token each for those that decode, a chunk of the prompt for those that
prefill. Sequences join and leave at every step. `contract.py` says what the two sides are to each other.
"""
