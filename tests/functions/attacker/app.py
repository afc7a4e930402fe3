"""Tries to get out: one attack per call. Answers what it got, or "refused: …" with why not."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import samovar as sv

SYS_IO_URING_SETUP, SYS_UNSHARE_USER = 425, 0x10000000
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: str) -> str:
    return Path(path).read_text()


def list_folder(path: str) -> str:
    return " ".join(["listed:", *os.listdir(path)])


def overwrite(path: str) -> str:
    with open(path, "r+b") as file:
        file.write(b"tampered")
    return "written"


def ask(family: int, address: str | tuple[str, int]) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(address)
        return sock.recv(100).decode()


def tcp(port: str) -> str:
    return ask(socket.AF_INET, ("127.0.0.1", int(port)))


def unix(path: str) -> str:
    return ask(socket.AF_UNIX, path)


def abstract(name: str) -> str:
    return ask(socket.AF_UNIX, "\0" + name)


def datagram(path: str) -> str:
    """A connected pair needs no socket(); unconnected again, it could go anywhere."""
    for sock in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        sock.sendto(b"tea", path)
    return "sent"


def each(pids: str, deed: object) -> str:
    """Do it to the first of the comma-separated pids that lets it be done: the host's number, and the one in here."""
    last: Exception = LookupError("no pid")
    for pid in map(int, pids.split(",")):
        try:
            return str(deed(pid))  # type: ignore[operator]
        except OSError as error:
            last = error
    raise last


def kill(pids: str) -> str:
    return each(pids, lambda pid: os.kill(pid, 0) or f"may signal {pid}")


def trace(pids: str) -> str:
    def attach(pid: int) -> str:
        checked(LIBC.ptrace(PTRACE_ATTACH, pid, None, None))
        os.waitpid(pid, 0)
        LIBC.ptrace(PTRACE_DETACH, pid, None, None)
        return "traced"

    return each(pids, attach)


def memory(pids: str) -> str:
    """What the other process holds under a variable whose address is the same in every fork."""

    def peek(pid: int) -> str:
        with open(f"/proc/{pid}/mem", "rb") as other:
            start = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0], 16)
            other.seek(start)
            return f"read {len(other.read(16))} bytes"

    return each(pids, peek)


def environment(pids: str) -> str:
    return each(pids, lambda pid: f"read {len(Path(f'/proc/{pid}/environ').read_bytes())} bytes")


def execute(program: str) -> str:
    return f"exit code {subprocess.run([program], check=False).returncode}"


def forks(number: str) -> str:
    """Fork so many children that do nothing, and end them; answer how many there were."""
    pids = []
    try:
        for _ in range(int(number)):
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            pids.append(pid)
    except OSError as error:
        if not pids:
            raise
        return f"{len(pids)} forks, then {error}"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"{len(pids)} forks"


def io_uring(entries: str) -> str:
    fd = checked(LIBC.syscall(SYS_IO_URING_SETUP, int(entries), ctypes.create_string_buffer(120)))
    os.close(fd)
    return "set up"


def user_namespace(_: str) -> str:
    """In a child where that may be: what it did here would last."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if LIBC.unshare(SYS_UNSHARE_USER) == 0 else 1)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("unshare failed")
    return "entered"


def become_root(_: str) -> str:
    os.setuid(0)
    return "root"


def fill(num_bytes: str) -> str:
    return f"{len(bytearray(int(num_bytes)))} bytes"


def fill_shared(num_bytes: str) -> str:
    """Memory that no limit of the process counts."""
    area = mmap.mmap(-1, int(num_bytes))
    for start in range(0, len(area), mmap.PAGESIZE):
        area[start] = 1
    return f"{len(area)} bytes"


def leave_running(seconds: str) -> str:
    """A child in a session of its own, which nobody waits for."""
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"], start_new_session=True)
    return str(child.pid)


def scratch(text: str) -> str:
    path = Path(os.environ["TMPDIR"], "note.txt")
    path.write_text(text)
    return path.read_text()


def who(_: str) -> str:
    return f"{os.getuid()} {os.getpid()} {len([name for name in os.listdir('/proc') if name.isdigit()])}"


DEEDS = {
    deed.__name__: deed
    for deed in (
        *(read, list_folder, overwrite, tcp, unix, abstract, datagram, kill, trace, memory, environment, execute),
        *(forks, io_uring, user_namespace, become_root, fill, fill_shared, leave_running, scratch, who),
    )
}


@sv.function(name="attacker")
def attacker(deed: str, target: str = "") -> str:
    try:
        return DEEDS[deed](target)
    except (OSError, MemoryError, LookupError) as error:
        return f"refused: {type(error).__name__}: {error}"
