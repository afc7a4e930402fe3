"""The pool manager: observe demand and instances, decide with pure functions, act through a backend, record why.

Reading order: model, autoscaler, warm_pool, placement, eviction, reconciler (pure); manager (the loop); signals and
backends/ (the shells). Pure modules import no redis, boto3, asyncio, time, random or torch.
"""
