"""Job workers: queued jobs taken from RQ's queues, run by the dispatcher, settled once."""
