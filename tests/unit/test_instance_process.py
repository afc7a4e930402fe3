"""What an instance knows of its own process: its log, its memory, whether it may be forked from, whom to blame."""

from __future__ import annotations

import os
import runpy
import socket
import threading
from pathlib import Path

import pytest

from samovar.errors import DeployRefused
from samovar_instance import introspect, logs
from samovar_instance.loader import blame


def test_a_log_that_grew_too_large_keeps_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    try:
        for number in range(1000):
            os.write(fd, b"line %d\n" % number)
        assert not logs.cap(fd, max_bytes=100_000)
        assert logs.cap(fd, max_bytes=5000, kept_bytes=100)
        os.write(fd, b"after\n")
    finally:
        os.close(fd)
    first, *lines = path.read_text().splitlines()
    assert "its beginning was dropped" in first
    assert lines[-2:] == ["line 999", "after"]
    assert all(line.startswith("line ") for line in lines[:-1]), "no line is cut in two"


def test_what_this_process_is_made_of() -> None:
    assert introspect.memory_bytes() > 1_000_000
    before = introspect.num_os_threads()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert introspect.num_os_threads() == before + 1
    stop.set()
    thread.join()


def test_a_socket_left_open_forbids_templates() -> None:
    pool = introspect.num_os_threads() - 1  # whatever the test runner has
    before = introspect.open_fds()
    assert introspect.why_not_templatable(before, pool) in ("", "load left a child process running")
    with socket.socket():
        assert "socket:" in introspect.why_not_templatable(before, pool)


def test_threads_beyond_the_pool_forbid_templates() -> None:
    assert "threads running" in introspect.why_not_templatable(introspect.open_fds(), -1)


def raise_in(path: Path, source: str) -> BaseException:
    path.write_text(source)
    with pytest.raises(ValueError) as caught:
        runpy.run_path(str(path))
    return caught.value


def test_the_innermost_line_of_the_users_code_is_to_blame(tmp_path: Path) -> None:
    source = "import json\n\ndef parse():\n    json.loads('{')\n\nparse()\n"
    assert blame(raise_in(tmp_path / "app.py", source), str(tmp_path)) == ("app.py", 4)


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("x = 1\ny = = 2\n")
    with pytest.raises(SyntaxError) as caught:
        compile(path.read_text(), str(path), "exec")
    assert blame(caught.value, str(tmp_path)) == ("app.py", 2)


def test_a_refusal_names_what_it_refused(tmp_path: Path) -> None:
    refused = DeployRefused("no hint", file=str(tmp_path / "sub" / "app.py"), line=7)
    assert blame(refused, str(tmp_path)) == ("sub/app.py", 7)


def test_code_that_is_not_the_users_is_not_to_blame(tmp_path: Path) -> None:
    assert blame(ValueError("from nowhere"), str(tmp_path)) == ("", 0)
