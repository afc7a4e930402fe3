"""Which instances serve: a connection to every ready one, kept while it lives.

An instance is left only when the pool manager says that it drains or is gone, or when its connection ends. What Redis
lost is not news about instances: after a resync those that are connected stay. This module does not know calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from samovar.lifecycle import State
from samovar_dispatch.connection import InstanceConnection
from samovar_dispatch.dispatcher import Dispatcher
from samovar_storage.ending import end_tasks
from samovar_storage.records import InstanceRecord

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
FIRST_RETRY_S = 0.02
MAX_RETRY_S = 1.0


class Membership:
    """Follows instance records; tells the dispatcher through the connections it makes.

    peer: how this gateway introduces itself to instances. states: of every instance the manager spoke of and that is
    not gone, its ref ("" for a blank) and its state, for those who count.
    """

    def __init__(self, dispatcher: Dispatcher, peer: str) -> None:
        self._dispatcher = dispatcher
        self._peer = peer
        self.states: dict[str, tuple[str, str]] = {}
        self._records: dict[str, InstanceRecord] = {}
        self._links: dict[str, asyncio.Task[None]] = {}
        self._connections: dict[str, InstanceConnection] = {}

    def put(self, record: InstanceRecord) -> None:
        """The manager says this about one instance: a ready one is connected at once, others get no more calls."""
        if record.state == State.GONE:
            self.states.pop(record.instance_id, None)
        else:
            self.states[record.instance_id] = (record.ref, record.state)
        self._dispatcher.hear(record)
        if record.state == State.READY and record.ref and record.address:
            self._records[record.instance_id] = record
            self._link(record)
            return
        self._records.pop(record.instance_id, None)
        connection = self._connections.get(record.instance_id)
        if record.state == State.GONE:
            self._dispatcher.reception.explain(record.instance_id, record.ended)
        if connection is not None:
            connection.ended = record.ended if record.state == State.GONE else None
            self._dispatcher.stop_sending(connection)

    def replace(self, records: Iterable[InstanceRecord]) -> None:
        """These are all the instances Redis knows. Those connected but unknown there stay until they end."""
        known = {record.instance_id: record for record in records}
        self.states = {}
        for instance_id in self._records.keys() - known.keys() - self._connections.keys():
            del self._records[instance_id]
        for record in known.values():
            self.put(record)

    def link_known(self) -> None:
        """Connect the ready instances whose version has become known since they were announced."""
        for record in self._records.values():
            self._link(record)

    async def close(self) -> None:
        """End every connection."""
        await end_tasks(self._links.values())

    def _link(self, record: InstanceRecord) -> None:
        if record.instance_id not in self._links and record.ref in self._dispatcher.versions:
            task = asyncio.get_running_loop().create_task(self._keep_linked(record.instance_id))
            self._links[record.instance_id] = task
            task.add_done_callback(lambda _: self._links.pop(record.instance_id, None))

    async def _keep_linked(self, instance_id: str) -> None:
        """Connect while the record says ready; again, ever more slowly, after a connection ended."""
        retry_s = FIRST_RETRY_S
        while (record := self._records.get(instance_id)) is not None:
            self._dispatcher.hear(record)
            connection = InstanceConnection(record, self._dispatcher.reception, self._peer)
            try:
                await self._connect(connection, record.address)
            except (OSError, TimeoutError) as error:
                log.debug("instance %s: %s", instance_id, error)
            else:
                self._connections[instance_id] = connection
                try:
                    reason = await connection.closed
                finally:
                    del self._connections[instance_id]
                    connection.close("this gateway leaves")
                log.info("instance %s of %s: connection closed: %s", instance_id, record.ref, reason)
                retry_s = FIRST_RETRY_S if connection.was_open else retry_s
            await asyncio.sleep(retry_s)
            self._dispatcher.forget(record)
            retry_s = min(MAX_RETRY_S, retry_s * 2)

    async def _connect(self, connection: InstanceConnection, address: str) -> None:
        loop = asyncio.get_running_loop()
        kind, _, where = address.partition(":")
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if kind == "unix":
                await loop.create_unix_connection(lambda: connection, where)
            else:
                host, _, port = where.rpartition(":")
                await loop.create_connection(lambda: connection, host, int(port))
