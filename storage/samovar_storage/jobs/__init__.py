"""Queued jobs in Redis, in RQ's own keys and beside them: every move of a job is one script."""
