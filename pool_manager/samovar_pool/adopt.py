"""Taking over what an earlier manager left running: zygotes, blanks, instances, templates.

The notes in the run folder say which processes there were; each must still be the same process (pid and start time) and
answer on its socket. What cannot be used is ended, stale sockets are removed. This module does not know Redis.
"""

from __future__ import annotations

import asyncio
import logging

from samovar.lifecycle import State
from samovar_pool.backends import procfs
from samovar_pool.backends.instance import Instance
from samovar_pool.backends.local import LocalBackend
from samovar_pool.backends.rundir import Note
from samovar_pool.model import BASE_ENVIRONMENT
from samovar_pool.versions import Catalogue

logger = logging.getLogger("samovar.pool")

ANSWER_S = 2.0


async def adopt_zygotes(backend: LocalBackend) -> None:
    """The zygotes an earlier manager left belong to `backend` afterwards; the base environment has or gets one.

    Needs to know no function, and comes first: the imports of a new zygote take longest of all that is started.
    """
    notes = [note for note in _alive(backend) if note.kind == "zygote"]
    await asyncio.gather(*(_adopt_zygote(backend, note) for note in notes))
    if backend.zygotes.get(BASE_ENVIRONMENT) is None:
        backend.zygotes.start(BASE_ENVIRONMENT)


async def adopt(backend: LocalBackend, catalogue: Catalogue) -> None:
    """The blanks, instances and templates an earlier manager left alive and usable belong to `backend` afterwards; the
    rest is gone."""
    processes = [note for note in _alive(backend) if note.kind != "zygote"]
    await asyncio.gather(*(_adopt_process(backend, note, catalogue) for note in processes))
    backend.preparer.unpin_all_but(set(backend.instances))
    backend.run.remove_strays(backend.zygotes.keys() | set(backend.instances))
    if processes:
        logger.info("adopted %d of %d processes of an earlier manager", len(backend.instances), len(processes))


def _alive(backend: LocalBackend) -> list[Note]:
    """Return the notes whose process still runs; the others are forgotten."""
    notes = backend.run.notes()
    alive = [note for note in notes if note.pid and procfs.start_ticks(note.pid) == note.start_ticks]
    kept = {note.instance_id for note in alive}
    for note in notes:
        if note.instance_id not in kept:
            backend.run.forget(note.instance_id)
    return alive


async def _adopt_zygote(backend: LocalBackend, note: Note) -> None:
    zygote = backend.zygotes.new(note.environment)
    try:
        await zygote.adopt(note, ANSWER_S)
    except (OSError, TimeoutError) as error:
        logger.warning("zygote %s cannot be adopted: %s", note.environment or "base", error or "no answer")
        procfs.kill(note.pid, note.start_ticks)
        backend.run.forget(note.instance_id)
    else:
        backend.zygotes.adopted(zygote)


async def _adopt_process(backend: LocalBackend, note: Note, catalogue: Catalogue) -> None:
    instance = _from_note(note, catalogue)
    if instance is None:
        logger.info("ending %s: nothing is known of %s any more", note.instance_id, note.ref)
        procfs.kill(note.pid, note.start_ticks)
        backend.run.forget(note.instance_id)
        return
    backend.adopt_instance(instance)
    await backend.connect(instance)
    if not instance.ref:
        await _answered(instance)


async def _answered(instance: Instance) -> None:
    """Wait for the Welcome of a blank; one that does not answer is ended."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await instance.heard.wait()
    except TimeoutError:
        instance.kill("it did not answer its next manager")


def _from_note(note: Note, catalogue: Catalogue) -> Instance | None:
    """Return the instance a note describes; None if its version is not known any more.

    One with a version is taken to be loading: it answers once it is loaded, the load limit bounds the wait.
    """
    version = catalogue.versions.get(note.ref)
    if note.ref and version is None:
        return None
    return Instance(
        instance_id=note.instance_id,
        token=note.token,
        address=note.address,
        environment=note.environment,
        devices=note.devices,
        role="template" if note.kind == "template" else "instance",
        state=State.LOADING if note.ref else State.STARTING,
        ref=note.ref,
        version=version,
        pid=note.pid,
        start_ticks=note.start_ticks,
        generation=note.generation,
        born_at_s=note.started_at_s,
        uid=note.uid,
    )
