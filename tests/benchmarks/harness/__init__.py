"""What the benchmarks share: options, verdicts, processes, load, and a platform to measure.

    report.py     options, interleaved takes, medians, targets, the printed table and the JSON line
    processes.py  /proc: CPU and memory of process trees, pinning, facts about the machine
    load.py       wrk with our script, read as one `Load`
    open_loop.py  calls that leave at their own times, however long answers take
    running.py    a whole platform in a temporary folder, deployed to, called and stopped
    jobs.py       jobs of a platform, submitted over HTTP and counted in Redis
    chaos.py      jobs under kill -9, and what must be true of them afterwards
    gateways.py   further gateways of a running platform
    peers.py      the drivers of the peers and the environments they live in
    child.py      our own scripts in processes beside a benchmark
    example.py    a deployable file driven without the platform
    minilm.py     the model, the sentences and the bare loops that figures are held against

A benchmark is a script beside this package: it defines TARGETS and a function that measures, and ends in `report.run`.
"""
