"""Every other model of transformers: a class per task, its types those that clients send and get.

    items ─► contents, each checked alone ─► transformers' pipeline, in one batch ─► plain JSON, in order

texts.py, images.py, detection.py, masks.py, sounds.py, videos.py, documents.py and speech.py hold the tasks, media.py
and frames.py what clients send, base.py what they share, loading.py how a folder becomes a pipeline.
multimodal.py writes text about pictures and sounds by an engine of its own: conversations.py reads what is sent to it,
with the processor of reading.py.
Only what a task needs is imported, and transformers' pipelines when a model is loaded.
"""
