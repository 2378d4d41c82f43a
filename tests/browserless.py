"""Asking a web server byte by byte, as no client library would: what the attacks on the served UI are sent with."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers import free_port

NGINX_CONF = Path(__file__).resolve().parent.parent / "docs" / "nginx.conf"
NAME = "backfill.example.com"


@dataclass(frozen=True)
class Answer:
    status: int  # 0: the connection was closed without one
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Way:
    """How a request reaches the server: the connection, the name it is asked under, and what it says of itself."""

    name: str
    connect: Callable[[], socket.socket]
    host: str
    origin: str
    headers: tuple[tuple[str, str], ...] = ()

    def ask(
        self,
        target: str = "/graphql",
        body: bytes | str = b"",
        *,
        method: str = "POST",
        headers: Sequence[tuple[str, str]] = (),
        host: str | None = None,
    ) -> Answer:
        content = body.encode() if isinstance(body, str) else body
        given = {name.lower() for name, _ in headers}
        lines = [f"{method} {target} HTTP/1.1"]
        lines += [f"Host: {self.host if host is None else host}"] if host != "" else []
        lines += [f"{name}: {value}" for name, value in (*self.headers, *headers)]
        lines += [f"Content-Length: {len(content)}"] if method == "POST" and "content-length" not in given else []
        return self.send("\r\n".join([*lines, "Connection: close", "", ""]).encode() + content)

    def send(self, raw: bytes) -> Answer:
        with self.connect() as connection:
            try:
                connection.sendall(raw)
                received = b"".join(iter(lambda: connection.recv(65536), b""))
            except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                return Answer(0, {}, b"")
        head, _, rest = received.partition(b"\r\n\r\n")
        if not head:
            return Answer(0, {}, b"")
        first, *fields = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for name, _, value in (field.partition(":") for field in fields):
            headers[name.lower()] = ", ".join(
                [*([headers[name.lower()]] if name.lower() in headers else []), value.strip()]
            )
        chunked = headers.get("transfer-encoding") == "chunked"
        return Answer(int(first.split()[1]), headers, _joined(rest) if chunked else rest)


def _joined(chunks: bytes) -> bytes:
    body = b""
    while chunks:
        size, _, chunks = chunks.partition(b"\r\n")
        body += chunks[: int(size, 16)]
        chunks = chunks[int(size, 16) + 2 :]
    return body


def to_port(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=20)


def to_tls_port(port: int, certificate: Path) -> Callable[[], socket.socket]:
    context = ssl.create_default_context(cafile=str(certificate))
    return lambda: context.wrap_socket(to_port(port)(), server_hostname=NAME)


def basic(user: str, password: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def missing_for_nginx() -> str:
    """Return what this machine lacks to run nginx with a certificate; "" if nothing."""
    lacking = [name for name in ("nginx", "openssl") if _program(name) is None]
    return f"{' and '.join(lacking)} is not on this machine" if lacking else ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def nginx(folder: Path, sockets: Path, users: dict[str, str], operators: Sequence[str]) -> Iterator[tuple[int, Path]]:
    """Run docs/nginx.conf in a real nginx, on free ports; yield its TLS port and its certificate."""
    program, openssl = _program("nginx"), _program("openssl")
    assert program is not None
    assert openssl is not None
    folder.mkdir()
    tls, plain = free_port(), free_port()
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"),
            *("-addext", f"subjectAltName=DNS:{NAME}", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    lines = []
    for user, password in users.items():
        salt = os.urandom(8)
        hashed = base64.b64encode(hashlib.sha1(password.encode() + salt).digest() + salt).decode()
        lines.append(f"{user}:{{SSHA}}{hashed}\n")
    (folder / "passwords").write_text("".join(lines))
    (folder / "operators").write_text("".join(f"{name} operator;\n" for name in operators))
    text = NGINX_CONF.read_text()
    for ours, theirs in (
        ("/etc/nginx/backfill/", f"{folder}/"),
        ("/srv/backfill/ui/", f"{sockets}/"),
        ("listen 443", f"listen 127.0.0.1:{tls}"),
        ("listen 80", f"listen 127.0.0.1:{plain}"),
    ):
        assert ours in text
        text = text.replace(ours, theirs)
    (folder / "backfill.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""  # the folders of a test are open to nobody else
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{user} pid {folder}/pid; error_log {folder}/errors.log; worker_processes 1; daemon off;\n"
        f"events {{}} http {{ access_log off; {temporary} include {folder}/backfill.conf; }}\n"
    )
    process = subprocess.Popen(
        [program, "-e", str(folder / "errors.log"), "-c", str(folder / "nginx.conf"), "-p", str(folder)],
        stderr=subprocess.PIPE,
    )
    try:
        for _ in range(100):
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
            try:
                to_port(tls)().close()
                break
            except OSError:
                time.sleep(0.05)
        yield tls, certificate
    finally:
        process.terminate()
        process.wait(10)
