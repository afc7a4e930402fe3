"""`samovar deploy app.py`: what goes up, how far it is, and how to call it once it is live."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from samovar.cli.deploy_model import eject, model_options, project_of, refuse_strays, written
from samovar.cli.rollout import trial_of, trial_options
from samovar.cli.session import Session, verb
from samovar.cli.text import described, measured, sample, size
from samovar.tasks import EMBEDDINGS, PARTS

if TYPE_CHECKING:
    from rich.table import Table

    from samovar.deploying import Deployed, Package
    from samovar.spec import Manifest
    from samovar.uploading import BlobPlan, OnBytes

_MAX_ROWS = 40
_MAX_EXAMPLE_CHARS = 500
_OPENAI = (*PARTS, EMBEDDINGS)
_HEARS = ("automatic-speech-recognition", "audio-classification")


@click.command()
@click.argument("target", metavar="FILE[:NAME]", required=False)
@model_options
@click.option("--name", help="Deploy under this name instead of the function's own.")
@click.option("--dry-run", is_flag=True, help="Say what would go up; change nothing.")
@click.option("--allow-pickle", is_flag=True, help="Accept weights that run code when they are read. Trust them first.")
@click.option("--canary", type=click.IntRange(1, 99), help="Try it out: this percent of the calls, not all of them.")
@trial_options
@click.option("--mirror", type=click.IntRange(1, 100), help="Only send it copies of this percent of the calls.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it has taken over from the version before.")
@verb()
def deploy(
    session: Session,
    target: str | None,
    name: str | None,
    allow_pickle: bool,
    **flags: Any,
) -> None:
    """Upload the function in FILE (or FILE/app.py) with its folder and weights, and make it live.

    With --model FOLDER, the function is written for you: a folder of weights becomes an endpoint without code.
    Only what object storage does not hold yet is uploaded; a broken upload goes on where it ended.
    """
    is_model = flags["model"] is not None
    plan = _Plan(name, allow_pickle, flags.pop("dry_run"), flags.pop("no_wait"), is_model, _rollout(flags))
    if (target is None) != is_model:
        raise click.UsageError("give FILE, or --model FOLDER" + (", not both" if target else ""))
    if target is not None:
        refuse_strays(flags)
        session.note(f"importing {target} …")
        _deploy(session, target, plan)
        return
    project = project_of(flags, name, allow_pickle)
    if flags["print_code"]:
        click.echo(project.code, nl=False)
    elif flags["eject"] is not None:
        eject(session, project, flags["eject"])
    else:
        with written(session, project) as app:
            _deploy(session, app, plan)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to become of a function, wherever its file came from. is_tried: it is loaded once before all is well."""

    name: str | None
    allow_pickle: bool
    dry_run: bool
    no_wait: bool
    is_tried: bool
    rollout: dict[str, Any]


def _deploy(session: Session, target: str, plan: _Plan) -> None:
    """Inspect, pack, hash, upload, create the version, and wait until it has taken over."""
    from samovar import deploying

    draft = deploying.inspect(target)
    with _progress(session, "hashing weights", deploying.weight_bytes(draft)) as on_hashed:
        package = deploying.prepare(
            draft,
            name=plan.name,
            allow_pickle=plan.allow_pickle,
            on_hashed=on_hashed,
            on_build=lambda declared: session.note(f"building its models: {described(declared)} …"),
        )
    plans = deploying.plan(session.client, package, dry_run=plan.dry_run)
    if plan.dry_run:
        _emit_dry_run(session, package, plans)
        return
    missing = [blob for blob in plans if not blob.present]
    num_bytes = sum(package.sources[blob.sha256].size_bytes for blob in missing)
    with _progress(session, f"uploading {len(missing)} of {len(plans)} blobs", num_bytes) as on_sent:
        sent = deploying.upload(session.client, package, plans, on_sent)
    deployed = deploying.create(session.client, package, plan.rollout)
    if not (plan.no_wait or plan.rollout):
        session.note(f"waiting for {deployed.name}@{deployed.version} to take over …")
        deploying.wait_until_serving(session.client, deployed, package.manifest.limits.load_timeout_s)
        if plan.is_tried and not _lacks_device(package.manifest, deployed):
            session.note("loading it for the first time …")
            deploying.wait_until_loaded(session.client, deployed, package.manifest.limits.load_timeout_s)
            if manner := deploying.manner_of(session.client, deployed):
                session.note(f"its model runs {manner}")
    _emit_deployed(session, package, deployed, len(missing), sent, plan.rollout)


def _lacks_device(manifest: Manifest, deployed: Deployed) -> bool:
    """Return whether it waits for a GPU that no node has: the warning says so, and nothing comes up meanwhile."""
    return manifest.resources.gpus > 0 and bool(deployed.warnings)


def _rollout(flags: dict[str, Any]) -> dict[str, Any]:
    """Take out of the flags how the new version gets traffic, for the query of the deploy; empty for all of it."""
    canary, mirror = flags.pop("canary"), flags.pop("mirror")
    trial = {key: flags.pop(key) for key in ("auto", "bake_s", "sticky")}
    if canary and mirror:
        raise click.UsageError("a new version is a canary or a mirror, not both")
    if mirror:
        return {"mirror": mirror}
    if canary:
        return {"canary": canary, **trial_of(**trial)}
    if trial_of(**trial):
        raise click.UsageError("--auto, --bake and --sticky are for a canary: give --canary PERCENT")
    return {}


@contextmanager
def _progress(session: Session, what: str, total_bytes: int) -> Iterator[OnBytes]:
    """Show a bar on a terminal while the context lasts; yield what to tell of bytes done."""
    if session.as_json or not total_bytes or not session.err.is_terminal:
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=session.err) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield lambda count: progress.advance(task, count)


def _emit_dry_run(session: Session, package: Package, plans: list[BlobPlan]) -> None:
    present = {plan.sha256: plan.present for plan in plans}
    rows: list[dict[str, Any]] = [
        {"file": source.label, "size_bytes": source.size_bytes, "sha256": sha256, "present": present[sha256]}
        for sha256, source in package.sources.items()
    ]
    would_send = sum(source.size_bytes for sha256, source in package.sources.items() if not present[sha256])
    data = {"name": package.manifest.name, "dry_run": True, "blobs": rows, "upload_bytes": would_send}
    data |= _built(package)
    session.emit(data, lambda: _dry_run_table(package, rows))
    _note_models(session, package)
    session.note(f"would upload {size(would_send)} and create a new version of {package.manifest.name}")


def _dry_run_table(package: Package, rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("file", "size", "sha256", "already there", box=None, pad_edge=False, header_style="bold")
    for row in rows[:_MAX_ROWS]:
        label = f"code ({package.num_code_files} files)" if row["file"] == "code" else row["file"]
        table.add_row(label, size(row["size_bytes"]), row["sha256"][:12], "yes" if row["present"] else "no")
    if len(rows) > _MAX_ROWS:
        table.add_row(f"… and {len(rows) - _MAX_ROWS} more", "", "", "")
    return table


def _emit_deployed(
    session: Session,
    package: Package,
    deployed: Deployed,
    num_uploaded: int,
    num_bytes: int,
    rollout: dict[str, Any],
) -> None:
    data: dict[str, Any] = {
        "name": deployed.name,
        "version": deployed.version,
        "url": deployed.url,
        "task": package.manifest.task,
        "num_blobs": len(package.sources),
        "num_uploaded": num_uploaded,
        "uploaded_bytes": num_bytes,
        "warnings": list(deployed.warnings),
        **_built(package),
        **rollout,
    }
    for warning in deployed.warnings:
        session.note(f"warning: {warning}")
    _note_models(session, package)
    session.emit(data, lambda: _deployed_text(session, package, deployed, _traffic(rollout), (num_uploaded, num_bytes)))


def _note_models(session: Session, package: Package) -> None:
    """Say how the version's models are run, and what that was measured to cost and gain."""
    built, declared = package.manifest.built, described(package.manifest.acceleration)
    if declared:
        session.note(f"{declared}: {measured(built)}" if built is not None else declared)


def _built(package: Package) -> dict[str, Any]:
    """Return what was made of the version's models, and the error that was measured; empty if nothing was."""
    import msgspec

    built = package.manifest.built
    if built is None:
        return {}
    return {"acceleration": msgspec.to_builtins(package.manifest.acceleration), "built": msgspec.to_builtins(built)}


def _traffic(rollout: dict[str, Any]) -> str:
    """Return what the new version gets."""
    if percent := rollout.get("canary"):
        return f"gets {percent} % of the calls, once it is ready"
    if percent := rollout.get("mirror"):
        return f"gets copies of {percent} % of the calls"
    return "is live"


def _deployed_text(
    session: Session, package: Package, deployed: Deployed, traffic: str, uploaded: tuple[int, int]
) -> str:
    num_uploaded, num_bytes = uploaded
    sent = f"uploaded {size(num_bytes)}" if num_uploaded else "nothing to upload, everything was there"
    base = f"{session.client.connection.url}/v1"
    piped, body = shown_body(package.manifest)
    live = click.style(f"{deployed.name}@{deployed.version}", fg="green", bold=True) + f" {traffic}"
    chat = f"samovar chat {deployed.name}\n" if package.manifest.task in PARTS else ""
    openai = (
        f"  OpenAI's clients: base_url={base!r}, model={deployed.name!r}\n" if package.manifest.task in _OPENAI else ""
    )
    return (
        f"{live} ({sent})\n  {deployed.url}\n{openai}\n{chat}"
        f"{piped}samovar invoke {deployed.name}{'' if piped else f' --json {body}'}\n"
        f"{piped}curl -X POST {deployed.url} -H {_key_header(session)} -d {body}"
    )


def shown_body(manifest: Manifest) -> tuple[str, str]:
    """Return what a shell is told to call it: what is piped in ("" if nothing), and the body for curl."""
    if manifest.task in _HEARS:  # too long for a command line, and silence says nothing
        return """printf '{"audio": "%s"}' "$(base64 < speech.wav | tr -d '\\n')" | """, "@-"
    return "", shlex.quote(json.dumps(_shown_input(manifest), ensure_ascii=False))


def _shown_input(manifest: Manifest) -> Any:
    """Return an input to try: the example, unless it is too long to be looked at."""
    if manifest.example is None or len(json.dumps(manifest.example)) > _MAX_EXAMPLE_CHARS:
        return sample(manifest.input_schema)
    return manifest.example


def _key_header(session: Session) -> str:
    """Return the header for a shell: the key itself only where a person sees it who can read its file anyway."""
    connection = session.client.connection
    if sys.stdout.isatty() and connection.source != "given":
        return f'"Authorization: Bearer {connection.api_key}"'
    return '"Authorization: Bearer $SAMOVAR_API_KEY"'
