"""The routes of queued jobs."""
