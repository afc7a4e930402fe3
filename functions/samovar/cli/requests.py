"""The request log at the command line: `samovar logs --requests NAME`, as records, as a summary, or asked in SQL.

Times are read and shown as people write them. This module does not know where records are kept.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from samovar.errors import ConfigError, InvalidInput, StoreUnavailable
from samovar.transport import is_loopback, transport_error

if TYPE_CHECKING:
    from rich.table import Table

    from samovar.cli.session import Session

_NEVER_CUT = ("at", "instance", "request id")  # in a narrow terminal: people copy them
_WIDE = 110  # columns of a terminal that has room for everything
_MARKS = ("cold", "cached", "fallback", "retried", "hedged", "shadow")
_NATIVE = "native"
_DOWNLOAD_TIMEOUT_S = 60.0
MAX_DOWNLOAD_BYTES = 4 << 30
MAX_SQL_ROWS = 10_000


def show_records(session: Session, name: str, query: Mapping[str, Any]) -> None:
    """Print the newest records that fit, oldest first."""
    answer = session.get(_path(name, "", query))
    _warn(session, answer)
    if session.as_json:
        session.emit(answer["records"], str)
    elif answer["records"]:
        session.emit(answer["records"], lambda: _records_table(answer["records"], session.out.width))
    else:
        session.note("no such calls")


def show_summary(session: Session, name: str, query: Mapping[str, Any]) -> None:
    """Print calls by outcome and latency percentiles of every version."""
    answer = session.get(_path(name, "/summary", {k: v for k, v in query.items() if k != "limit"}))
    _warn(session, answer)
    session.emit(answer["versions"], lambda: _summary_table(answer["versions"], session.out.width))


def show_sql(session: Session, name: str, sql: str, query: Mapping[str, Any]) -> None:
    """Print what `sql` answers about the table `requests`. Raises ConfigError without DuckDB, InvalidInput for bad SQL.

    The files are fetched to a temporary folder and queried here, so nothing of the platform can be changed by it.
    """
    duckdb = _duckdb()
    answer = session.get(_path(name, "/files", {k: v for k, v in query.items() if k in ("since_s", "until_s")}))
    with tempfile.TemporaryDirectory(prefix="samovar-sql-") as folder:
        paths = _download(Path(folder), [file["url"] for file in answer["files"]])
        if not paths:
            session.note("there are no records in that time")
            session.emit([], lambda: "")
            return
        columns, rows = _run(duckdb, folder, paths, sql)
    shown = [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]
    session.emit(shown, lambda: _table(columns, [[*map(_cell, row)] for row in rows], session.out.width))


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError("--sql needs DuckDB: pip install 'samovar[sql]'") from error
    return duckdb


def _download(folder: Path, urls: list[str]) -> list[str]:
    """Return where the files lie now. Raises InvalidInput when they are more than anyone wants to fetch."""
    paths, left = [], MAX_DOWNLOAD_BYTES
    local = bool(urls) and is_loopback(urls[0])
    with httpx.Client(timeout=_DOWNLOAD_TIMEOUT_S, trust_env=not local) as client:
        for number, url in enumerate(urls):
            path = folder / f"{number:06d}.parquet"
            try:
                with client.stream("GET", url) as response, path.open("wb") as file:
                    if response.status_code == 404:
                        continue  # merged meanwhile: its records are in a file that is listed next time
                    if response.status_code >= 400:
                        raise StoreUnavailable(f"the object store answered {response.status_code}")
                    for chunk in response.iter_bytes():
                        left -= file.write(chunk)
            except httpx.HTTPError as error:
                raise transport_error(error, urlsplit(url).netloc) from None  # the URL itself is a credential
            if left < 0:
                raise InvalidInput("the files of that time are larger than 4 GiB: ask for less with --since")
            paths.append(str(path))
    return paths


def _run(duckdb: Any, folder: str, paths: list[str], sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows. The database sees these files and nothing else of this machine."""
    with duckdb.connect(":memory:") as database:
        listed = ", ".join(map(_quoted, paths))
        database.execute(f"SET allowed_directories = [{_quoted(folder)}]")
        database.execute(f"CREATE VIEW requests AS SELECT * FROM read_parquet([{listed}], union_by_name=true)")  # noqa: S608  our own paths
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            result = database.execute(sql)
            names = [column[0] for column in result.description or ()]
            return names, result.fetchmany(MAX_SQL_ROWS) if names else []
        except duckdb.Error as error:
            raise InvalidInput(f"SQL: {error}") from None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _path(name: str, suffix: str, query: Mapping[str, Any]) -> str:
    text = urlencode({key: value for key, value in query.items() if value is not None})
    return f"/v1/functions/{quote(name, safe='')}/requests{suffix}?{text}"


def _warn(session: Session, answer: Mapping[str, Any]) -> None:
    for store in answer["missing"]:
        what = "the newest calls" if store == "redis" else "all but the newest calls"
        session.note(f"{store} does not answer: {what} are missing")


def _records_table(records: list[dict[str, Any]], width: int) -> Table:
    columns = ["at", "v", "status", "code", "ms", "queue", "run", "instance", "marks", "request id"]
    rows = [
        [
            time.strftime("%H:%M:%S", time.localtime(record["at_s"])),
            str(record["version"] or "-"),
            str(record["status"]),
            record["code"],
            *(f"{record[f'{part}_ms']:.1f}" for part in ("total", "queue", "run")),
            record["instance"][-8:],
            " ".join((*_protocol(record), *(mark for mark in _MARKS if record[mark]))) + _stand_in(record),
            record["request_id"],
        ]
        for record in records
    ]
    if width < _WIDE:
        at = columns.index("instance")
        columns, rows = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    return _table(columns, rows, width)


def _protocol(record: Mapping[str, Any]) -> list[str]:
    """Return by which protocol it came, unless by ours; records of older releases do not say."""
    protocol = record.get("protocol", _NATIVE)
    return [protocol] if protocol != _NATIVE else []


def _stand_in(record: Mapping[str, Any]) -> str:
    """Return who answered instead of the version that was asked."""
    by = record.get("answered_by") or ""
    return f" by {by}" if by and by != f"{record['function']}@{record['version']}" else ""


def _summary_table(versions: list[dict[str, Any]], width: int) -> Table:
    outcomes = ["ok", "client", "failed", "shed", "late", "cancelled", "fallback", "cached"]
    counts = ["calls", *(outcome for outcome in outcomes if any(version[outcome] for version in versions))]
    times = ["total_p50_ms", "total_p95_ms", "total_p99_ms", "run_p50_ms", "run_p99_ms"]
    columns = ["v", *counts, "p50 ms", "p95", "p99", "run p50", "run p99"]
    rows = [[str(v["version"] or "-"), *(str(v[c]) for c in counts), *(_cell(v[t]) for t in times)] for v in versions]
    return _table(columns, rows, width)


def _table(columns: list[str], rows: list[list[str]], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2 if width >= _WIDE else 1, 0, 0))
    for column in columns:
        whole = column in _NEVER_CUT
        longest = max((len(row[len(table.columns)]) for row in rows), default=0)
        table.add_column(column, overflow="fold", no_wrap=whole, min_width=longest if whole else None)
    for row in rows:
        table.add_row(*map(Text, row))  # payloads are no markup
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return value if isinstance(value, str | int | float | bool | None | list | dict) else str(value)
