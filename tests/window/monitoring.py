"""The exporter and Prometheus as processes, with the configuration and the rules that are shipped."""

import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import httpx
import yaml
from paceline.rig.services import Service

RULES = Path(__file__).resolve().parents[2] / "dashboards/prometheus"


def answers(port: int, path: str) -> bool:
    """Whether somebody on this machine answers with success."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def exporter_service(port: int, redis_url: str, *, log: Path, env: Mapping[str, str] | None = None) -> Service:
    """`paceline exporter`."""
    command = [sys.executable, "-m", "paceline.cli", "exporter", f"--port={port}", f"--redis-url={redis_url}"]
    ready = partial(answers, port, "/metrics")
    return Service("exporter", command, log=log, is_ready=lambda _: ready(), start_limit_s=60.0, env=env)


def prometheus_service(folder: Path, port: int, exporter_port: int, interval: str = "") -> Service:
    """The shipped configuration with this exporter; at another interval than the shipped one if that is given."""
    config = yaml.safe_load((RULES / "prometheus.yml").read_text(encoding="utf-8"))
    if interval:
        config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "paceline"]
    config["scrape_configs"] = [job | {"static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}]}]
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    return Service(
        "Prometheus",
        [str(shutil.which("prometheus")), *flags, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
        log=folder / "prometheus.log",
        is_ready=lambda _: answers(port, "/-/ready"),
        start_limit_s=60.0,
    )
