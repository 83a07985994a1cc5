"""What is measured: each proxy as a process tree in front of the same two mock engines."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".tools" / "bench"
KEY = "sk-bench-0123456789abcdef"
START_SECONDS = 60.0
# The competitors come from PyPI, newest version, each in its own environment.
PACKAGES = {"vllm-router": "vllm_router", "sglang-router": "sglang_router", "smg": "smg"}


class BenchError(Exception):
    """The benchmark cannot run or a target does not answer as it must; the message says which and what to do."""


@dataclass
class Target:
    """One proxy under test. `main` is its first process; all processes below it count."""

    name: str
    version: str
    port: int
    argv: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    main: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("wb") as log:
            self.main = subprocess.Popen(
                self.argv,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
                    answer.read()
                    return
            except (urllib.error.URLError, OSError) as error:
                if self.main.poll() is not None or time.monotonic() > end:
                    log_text = (self.folder / f"{self.name}.log").read_text(errors="replace")[-2000:]
                    raise BenchError(f"{self.name} does not answer ({error}); its log ends:\n{log_text}") from None
                time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        assert self.main is not None
        main = psutil.Process(self.main.pid)
        return [main, *main.children(recursive=True)]

    def cpu_ns(self) -> int:
        """Time on CPU of all threads of all its processes, from the scheduler's own account."""
        total = 0
        for process in self.processes():
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        return total

    def resident_bytes(self) -> list[int]:
        """Resident memory of each of its processes, largest first."""
        return sorted((process.memory_info().rss for process in self.processes()), reverse=True)

    def stop(self) -> None:
        if self.main is None:
            return
        processes = self.processes() if self.main.poll() is None else []
        self.main.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=10)
        for process in alive:
            process.kill()
        self.main.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment_of(package: str) -> Path:
    """The virtual environment with the newest version of that package, made at first use."""
    folder = CACHE / package
    if not (folder / "complete").exists():
        print(f"installing the newest {package} into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install", "--upgrade"]
        subprocess.run([*pip, package, "setproctitle"], check=True)
        (folder / "complete").touch()
    return folder


def version_in(python: Path | str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
    fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    upstream engines {{ {servers} keepalive 256; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def nginx(folder: Path, engines: list[int]) -> Target:
    port = free_port()
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise BenchError("nginx is not installed; on Debian and Ubuntu: apt-get install nginx-light wrk")
    servers = " ".join(f"server 127.0.0.1:{engine};" for engine in engines)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, servers=servers, port=port))
    text = subprocess.run([program, "-v"], check=True, capture_output=True, text=True).stderr
    return Target("nginx", text.strip().rpartition("/")[2], port, [program, "-c", str(config), "-p", str(folder)], folder)


def llmgw(folder: Path, engines: list[int]) -> Target:
    return _llmgw("llmgw", sys.executable, folder, engines)


def llmgw_distro(folder: Path, engines: list[int]) -> Target:
    """The same on the distribution's own Python, which packages run on; built with more optimisation than most."""
    program = shutil.which("python3", path="/usr/bin")
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    if (
        program is None
        or subprocess.run([program, "-c", code], check=True, capture_output=True, text=True).stdout.strip() != wanted
    ):
        raise BenchError(f"there is no /usr/bin/python3 of version {wanted}; leave llmgw-distro out of --targets")
    paths = [str(ROOT / "router"), str(ROOT / "proto"), sysconfig.get_path("platlib")]
    target = _llmgw("llmgw-distro", program, folder, engines)
    target.environment["PYTHONPATH"] = os.pathsep.join(paths)
    return target


def _llmgw(name: str, python: str, folder: Path, engines: list[int]) -> Target:
    port = free_port()
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"bench:{KEY}\n")
    argv = [python, "-m", "llmgw_router", "--listen", f"127.0.0.1:{port}", "--workers", "1", "--api-keys", str(keys)]
    for number, engine in enumerate(engines):
        argv += ["--endpoint", f"e{number}=http://127.0.0.1:{engine}=m"]
    code = "import platform; print(platform.python_version())"
    version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return Target(name, f"{version_in(sys.executable, 'llmgw')} on CPython {version}", port, argv, folder)


def rust(package: str) -> Callable[[Path, list[int]], Target]:
    def make(folder: Path, engines: list[int]) -> Target:
        port = free_port()
        python = environment_of(package) / "bin" / "python"
        module = [f"{PACKAGES[package]}.launch_router"] if package != "smg" else ["smg", "launch"]
        argv = [str(python), "-m", *module, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
        argv += ["--log-level", "error", "--prometheus-port", str(free_port()), "--worker-urls"]
        argv += [f"http://127.0.0.1:{engine}" for engine in engines]
        return Target(package, version_in(python, package), port, argv, folder)

    return make


MAKERS: dict[str, Callable[[Path, list[int]], Target]] = {
    "nginx": nginx,
    "llmgw": llmgw,
    "llmgw-distro": llmgw_distro,
    **{package: rust(package) for package in PACKAGES},
}
