"""SGLang's own SchedulerWeightUpdaterManager under paceline's hooks, with doubles of all that it calls: prints JSON.

Run by sglang_forks.py, each scenario in a further fork: SGLang's registry patches classes for the life of a process.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import torch
from paceline.serving import sglang_hook_install
from paceline.serving.target.sglang_guard import SglangGuard
from paceline.serving.target.sglang_target import SglangTarget, first_version
from paceline.serving.target.target_updates import TargetUpdates
from sglang.srt import runtime_context
from sglang.srt.managers import io_struct, scheduler
from sglang.srt.managers.scheduler_components import weight_updater

TENSORS = {"serialized_named_tensors": [b""]}
BROADCAST: dict[str, Any] = {"names": [], "dtypes": [], "shapes": []}


class Runner:
    """A model runner and its updater; notes what is asked of it."""

    def __init__(self, role: str, touched: list[str]) -> None:
        self.role, self.touched, self.weight_updater = role, touched, self
        self.fault = ""

    def _answer(self, *_: Any, **__: Any) -> tuple[bool, str]:
        self.touched.append(self.role)
        return not self.fault, self.fault

    update_weights_from_disk = update_weights_from_tensor = update_weights_from_ipc = _answer
    load_weights_from_distributed = begin_weight_update = end_weight_update = _answer

    def receive_weights_from_distributed(self, **_: Any) -> list[Any]:
        return []

    def check_weights(self, **_: Any) -> None:
        self.touched.append(self.role)


class Server:
    """A scheduler with a target, a draft and the real manager of updates; `do` says what one call came to."""

    def __init__(self, target: SglangTarget) -> None:
        self.target, self.touched = target, []
        self.runners = {role: Runner(role, self.touched) for role in ("target", "draft")}
        self.tree_cache = SimpleNamespace(total_size=lambda: self.cached)
        self.cached, self.is_idle, self.names = 0, True, []
        found = {"flush_cache": lambda **_: scheduler.Scheduler.flush_cache(self), "is_fully_idle": None}
        found |= {"memory_saver_adapter": None, "scheduler": self}
        found |= {f"{role}_worker": None for role in ("tp", "draft")}
        if "tp_cpu_group" in {field.name for field in dataclasses.fields(self.manager_class) if field.init}:
            found["tp_cpu_group"] = None  # SGLang 0.5.21; the later ones find it
        self.manager = self.manager_class(**found)
        self.manager.tp_worker = SimpleNamespace(
            weight_update_runners=lambda: [("target", self.runners["target"])],
            model_runner=self.runners["target"],
            deserialize_own_rank=lambda _: [],
        )
        self.manager.draft_worker = SimpleNamespace(weight_update_runners=lambda: [("draft", self.runners["draft"])])

    manager_class = weight_updater.SchedulerWeightUpdaterManager

    def record_weight_version_change(self, new_version: str | None) -> None:
        """As the scheduler's."""
        self.names.append(new_version)

    def do(self, call: str, kind: str, **fields: Any) -> dict[str, Any]:
        """Send one request and say whom it touched, what was answered, and what paceline makes of the target."""
        self.touched.clear()
        result = getattr(self.manager, call)(getattr(io_struct, kind)(**fields))
        return self.said() | {"success": result.success, "message": result.message}

    def said(self) -> dict[str, Any]:
        said = self.target.updates.said()
        return {
            "touched": list(self.touched),
            "judging": self.target.updates.judging,
            "target_version": said.version,
            "target_reason": said.reason,
            "target_updates": said.updates,
            "target_update_ms": said.update_ms,
            "stale_prefixes": said.stale_prefixes,
        }

    def begin(self, **fields: Any) -> dict[str, Any]:
        return self.do("begin_weight_update", "BeginWeightUpdateReqInput", **fields)

    def end(self) -> dict[str, Any]:
        return self.do("end_weight_update", "EndWeightUpdateReqInput")

    def disk(self, **fields: Any) -> dict[str, Any]:
        return self.do("update_weights_from_disk", "UpdateWeightFromDiskReqInput", model_path="x", **fields)

    def ipc(self, **fields: Any) -> dict[str, Any]:
        return self.do("update_weights_from_ipc", "UpdateWeightsFromIPCReqInput", zmq_handles={}, **fields)

    def tensor(self, **fields: Any) -> dict[str, Any]:
        return self.do("update_weights_from_tensor", "UpdateWeightsFromTensorReqInput", **TENSORS, **fields)

    def distributed(self, **fields: Any) -> dict[str, Any]:
        return self.do("update_weights_from_distributed", "UpdateWeightsFromDistributedReqInput", **BROADCAST, **fields)

    def check(self) -> list[str]:
        self.touched.clear()
        self.manager.check_weights(io_struct.CheckWeightsReqInput(action="snapshot"))
        return list(self.touched)

    def every_call(self, **fields: Any) -> dict[str, Any]:
        """One after the other, with the selectors that clients send by default."""
        found = {"disk": self.disk(**fields), "ipc": self.ipc(**fields), "begin": self.begin()}
        return found | {"tensor": self.tensor(**fields), "distributed": self.distributed(**fields), "end": self.end()}


def a_failed_flush(server: Server) -> dict[str, Any]:
    server.is_idle, server.cached = False, (40, 0)
    try:
        return server.disk(weight_version="unflushed")
    except AssertionError as fault:  # SGLang 0.5.21: its scheduler dies
        return {"died": str(fault)}
    finally:
        server.is_idle, server.cached = True, 0


def broken(*_: Any) -> None:
    raise RuntimeError("planted")


def resolve(draft: str | None) -> None:
    runtime_context.get_spec = lambda: SimpleNamespace(speculative_draft_model_path=draft)
    runtime_context.get_model = lambda: SimpleNamespace(model_path="target")


def of_target(owns: bool, version: str) -> SglangTarget:
    return SglangTarget(SglangGuard(lambda: owns), TargetUpdates(version))


def scenario(name: str) -> dict[str, Any]:
    resolve("target" if "one checkpoint" in name else "draft")
    target = of_target("not ours" not in name, "7")
    scheduler.Scheduler.flush_cache = lambda server, empty_cache=True: server.is_idle  # its memory pools need a model
    if name != "stock":
        sglang_hook_install.install(target.hooks())
    server = Server(target)
    match name:
        case "not ours":
            draft = {"begin": server.begin(selector="draft"), "tensor": server.tensor(selector="draft")}
            return draft | {"distributed": server.distributed(selector="draft"), "end": server.end()}
        case "guarded":
            found: dict[str, Any] = {"named": server.every_call(weight_version="9"), "check": server.check()}
            found["unnamed"], found["no session"] = server.every_call(), server.tensor()
            found["refused"] = [server.begin(selector="draft"), server.begin()]
            found["refused"] += [server.tensor(selector="draft"), server.distributed(selector="draft"), server.end()]
            server.runners["target"].fault = "Failed to get weights iterator: no such folder"
            found["harmless"] = server.disk()
            server.runners["target"].fault = "Failed to update parameter online: half of it"
            server.begin()
            found["harmful"] = [server.distributed(), server.end()]
            server.runners["target"].fault = ""
            found["mended"], found["unflushed"] = server.disk(), a_failed_flush(server)
            server.cached = 12
            found["kept"] = server.disk(flush_cache=False)
            scheduler.Scheduler.handle_update_weight_version(
                server, io_struct.UpdateWeightVersionReqInput(new_version="named-later")
            )
            found["renamed"] = server.said()
            scheduler.Scheduler.flush_cache(server)
            found["flushed"] = server.said()
            server.tree_cache.total_size = broken
            found["cache of another kind"] = server.disk(flush_cache=False)
            target.updates.loaded = broken
            found["fault"] = {"begin": server.begin(), "tensor": server.tensor(), "end": server.end()}
            found["fault"] |= {"disk": server.disk()}
            return found
    return server.every_call() | {"check": server.check()}


def play(name: str) -> None:
    with tempfile.NamedTemporaryFile() as store:
        torch.distributed.init_process_group("gloo", f"file://{store.name}", rank=0, world_size=1)
        group = SimpleNamespace(cpu_group=torch.distributed.group.WORLD)
        weight_updater.get_parallel = lambda: SimpleNamespace(tp_group=group)
        named = "step-3" if name == "stock" else "default"
        runtime_context.get_serving = lambda: SimpleNamespace(weight_version=named)
        found = scenario(name) | {"first": first_version("0")}
        torch.distributed.destroy_process_group()
    sys.stdout.write(f"FOUND {json.dumps([name, found])}\n")
    sys.stdout.flush()


def main() -> None:
    logging.disable(logging.CRITICAL)
    for name in ("stock", "guarded", "one checkpoint", "one checkpoint, not ours", "not ours"):
        child = os.fork()
        if not child:
            play(name)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, name


if __name__ == "__main__":
    main()
