"""`paceline doctor`: what paceline will do on a server with these flags, and why not; in a process of its own.

Resolves the flags as SGLang's launcher does, which reads the model's config and starts nothing. The command adds the
board's side (dashboards/doctor).
"""

import json
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ...buffer.errors import CaptureUnavailable, ConfigError, told
from ...buffer.finding import Finding, Level, exit_code
from ...buffer.retention import TOPIC
from ...buffer.settings.kinds import PacingName
from .. import config
from ..cpu_host.config import is_wanted_here
from ..cpu_host.defaults import is_accelerator_present, unserved
from ..hook_targets import missing_targets
from ..sglang_speculation import check_speculation, draft_steps, drafts_blocks, has_draft_model, why_replay_is_no_proof
from ..supported_release import check_release
from . import sglang_quantisation
from .server import NO_REDIS_URL

#: What paceline cannot say without the flags of a server.
NO_FLAGS: Final = "cannot tell without the server's flags: paceline doctor -- --model-path ... (as for paceline serve)"
#: What paceline's entry point is called, in SGLANG_PLUGINS too.
PLUGIN: Final = "paceline"
#: Of a token in a trace beside its features: its id, verdicts and teacher.
TOKEN_BYTES: Final = 24
#: Flags by which SGLang itself writes prompts, or what it made of them, to files or into its log.
WRITING_FLAGS: Final = (
    "crash_dump_folder", "debug_tensor_dump_output_folder", "export_metrics_to_file", "hicache_storage_backend",
    "log_requests",
)  # fmt: skip
#: Layers of the target whose hidden states an EAGLE-3 draft reads; an MTP layer reads the last one's, DFLASH any.
FEATURE_LAYERS: Final = 3


def examine(flags: Sequence[str], settings: config.ServingConfig) -> Iterator[Finding]:
    """Every finding in turn. Imports SGLang; blocks on the disk."""
    is_supported = yield from _release()
    if not is_supported:
        return
    server_args = None
    if flags:
        server_args = yield from _resolved(flags)
        if server_args and not has_draft_model():
            settings = replace(settings, capture_features=False)  # as the plugin does
    for topic, look in _BY_SERVER.items():
        if flags and server_args is None:
            yield Finding(topic, Level.UNKNOWN, "cannot tell while SGLang refuses the flags")
        else:
            yield look(server_args, settings) if server_args else Finding(topic, Level.UNKNOWN, NO_FLAGS)


def _release() -> Generator[Finding, None, bool]:
    try:
        found = check_release()
    except CaptureUnavailable as fault:
        yield Finding("SGLang", Level.WRONG, f"capture, swaps and pacing are off: {fault}")
        return False
    missing = missing_targets()
    if missing:
        what = "; ".join(f"{why}, {_named(targets)}" for why, targets in _by_reason(missing).items())
        yield Finding("SGLang", Level.WRONG, f"{found} lacks what paceline hooks, so all is off: {what}{_next_step()}")
        return False
    yield Finding("SGLang", Level.OK, f"{found} has everything that paceline hooks")
    return True


def _by_reason(missing: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for target, why in missing.items():
        found.setdefault(why, []).append(target)
    return found


def _named(targets: Sequence[str]) -> str:
    return f"for {targets[0]}" + (f" and {len(targets) - 1} more" if len(targets) > 1 else "")


def _next_step() -> str:
    """What to do where SGLang is made for a GPU and there is none; empty elsewhere."""
    if is_wanted_here() or is_accelerator_present():
        return ""
    return "; no GPU is visible: add `--device cpu` to the flags of a server on this CPU"


def _resolved(flags: Sequence[str]) -> Generator[Finding, None, Any]:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_spec, publish
    from sglang.srt.server_args import prepare_server_args

    if is_wanted_here() and (why := unserved(flags)):
        yield Finding("flags", Level.WRONG, why)
        return None
    try:
        load_plugins()  # as the launcher does: they add choices to flags
        server_args = prepare_server_args(list(flags))
        server_args.resolve_once()
        server_args.check_server_args()
        publish(server_args, role="tokenizer")
    except SystemExit:
        yield Finding("flags", Level.WRONG, "SGLang's command line does not take these flags; its message is above")
        return None
    except Exception as fault:  # noqa: BLE001 - SGLang raises anything for flags that do not fit
        yield Finding("flags", Level.WRONG, f"SGLang refuses these flags: {type(fault).__name__}: {fault}")
        return None
    spec = get_spec()
    shape = draft_steps(), spec.speculative_eagle_topk, spec.speculative_num_draft_tokens
    says = "no speculation"
    if spec.speculative_algorithm is not None:
        says = f"{spec.speculative_algorithm}, steps {shape[0]}, top-k {shape[1]}, draft tokens {shape[2]}"
    yield Finding("flags", Level.OK, f"SGLang resolves them to {says}")
    return server_args


def _check_loaded() -> None:
    """Ask SGLang's own loader for paceline's plugin. Raises CaptureUnavailable where it would leave that out."""
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, load_plugins_by_group

    loaded = sorted(load_plugins_by_group(GENERAL_PLUGINS_GROUP))
    if PLUGIN not in loaded:
        raise CaptureUnavailable(
            f"SGLang loads the plugins {loaded}, expected {PLUGIN} among them; name it in SGLANG_PLUGINS where that "
            "allow list is set, else install paceline by pip beside SGLang"
        )


def _capture(_: Any, settings: config.ServingConfig) -> Finding:
    try:
        _check_loaded()
        check_speculation()
    except CaptureUnavailable as fault:
        return Finding("capture", Level.WRONG, f"off, and swaps with it: {fault}")
    if settings.redis_url is None:
        return Finding("capture", Level.WRONG, NO_REDIS_URL)
    what = f"with hidden states in {settings.quantised_to}, " if settings.quantised_to else ""
    if not settings.capture_features:
        what = "without hidden states, which learners recompute where PACELINE_RECOMPUTE_TOKENS says so, "
    return Finding("capture", Level.OK, f"on, {what}for {settings.sample_rate:.0%} of requests")


def _swap(server_args: Any, settings: config.ServingConfig) -> Finding:
    from sglang.srt.runtime_context import get_spec

    from ...buffer.drafts.single_file import draft_folder
    from ..swap.staging import read_layout

    spec = get_spec()
    if not has_draft_model():
        return Finding("swap", Level.NOTE, "off: NGRAM drafts without a model, so there is no draft to replace")
    if not spec.speculative_draft_model_path:
        return Finding("swap", Level.WRONG, "off: got no --speculative-draft-model-path, expected the draft to replace")
    try:
        check_speculation()  # before the draft is read: of an MTP layer that nobody learns it would be the whole target
        downloads = server_args.download_dir
        revision = spec.speculative_draft_model_revision
        folder = draft_folder(spec.speculative_draft_model_path, settings.cache_dir, revision, downloads)
        read_layout(folder)
        _check_layers(folder, server_args)
        sglang_quantisation.check_draft(server_args)
    except CaptureUnavailable:
        return Finding("swap", Level.WRONG, "off, since nothing is captured")
    except (ConfigError, OSError) as fault:
        return Finding("swap", Level.WRONG, f"off, so that no learned draft would ever serve: {fault}")
    return Finding("swap", Level.OK, f"on: learned drafts replace the one in {folder} while the server runs")


def _check_layers(folder: Path, server_args: Any) -> None:
    """ConfigError where the draft reads layers that the target lacks: SGLang would end at its first request.

    Which layer an id names differs between SGLang's models by one, so the last layer's is let pass.
    """
    from sglang.srt.configs.model_config import ModelConfig

    source = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers = (source.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if not layers:
        return
    last = ModelConfig.from_server_args(server_args).num_hidden_layers - 1
    if len({*layers}) < len(layers) or not all(0 <= layer <= last for layer in layers):
        raise ConfigError(
            f"{folder}: eagle_aux_hidden_state_layer_ids: got {layers}, expected different layers of the target, "
            f"0 to {last}"
        )


def _answers(_: Any, settings: config.ServingConfig) -> Finding:
    """What an answer depends on beside the target and what the client asks for."""
    from sglang.srt.runtime_context import get_exec

    try:
        check_speculation()
        counts_tokens = settings.redis_url is not None
    except CaptureUnavailable:
        counts_tokens = False
    left_out = "min_p" + get_exec().features.enable_custom_logit_processor * " and custom logit processors"
    by_draft = [] if counts_tokens else ["penalties, min_new_tokens or stop texts, which SGLang counts by rounds"]
    if get_exec().deterministic.enable_deterministic_inference:
        by_draft.append("a seed, which draws other tokens with another draft")
    says = "penalties, min_new_tokens and stop texts are counted by tokens, so greedy answers depend on no draft"
    if by_draft:
        says = f"where SGLang speculates, answers depend on the draft that have {'; or '.join(by_draft)}"
    level = Level.NOTE if by_draft else Level.OK
    return Finding("answers", level, f"{says}; when it speculates, SGLang leaves out {left_out} (docs/faults.md)")


def _replay(_: Any, settings: config.ServingConfig) -> Finding:
    why = why_replay_is_no_proof()
    if not why and (settings.quantised_to or not settings.capture_features):
        how = "rounded" if settings.capture_features else "recomputed"
        return Finding(
            "replay",
            Level.NOTE,
            f"tells nearly what another draft would have had accepted, from hidden states that are {how}; the gate "
            "judges by it, and no replay is claimed to be exact (docs/operations.md)",
        )
    if not why:
        return Finding("replay", Level.OK, "tells what another draft would have had accepted; the gate judges by it")
    turn_s = config.CANARY_TURN_S if settings.canary_turn_s is None else settings.canary_turn_s
    canary = f"on a single server in turns of {turn_s:g} s" if turn_s else "which needs a second server"
    return Finding("replay", Level.NOTE, f"{why}; a learned draft goes live after a canary, {canary}")


def _pacing(server_args: Any, settings: config.ServingConfig) -> Finding:
    from sglang.srt.runtime_context import get_parallel, get_spec

    spec = get_spec()
    if drafts_blocks() or not has_draft_model():
        every = f"every round drafts all it can, up to {draft_steps()} tokens ({spec.speculative_algorithm})"
        return Finding("pacing", Level.NOTE, f"off: {every}")
    if not spec.speculative_adaptive:
        steps = spec.speculative_num_steps
        allowed = "--speculative-adaptive allows it"
        if get_parallel().attn_dp_size > 1:
            allowed = "SGLang refuses --speculative-adaptive with data-parallel attention"
        return Finding("pacing", Level.NOTE, f"off: every round drafts {steps} steps; {allowed}")
    if settings.pacing is PacingName.OFF:
        return Finding("pacing", Level.NOTE, "off by PACELINE_PACING; SGLang's own rule chooses the draft steps")
    if get_parallel().tp_size > 1 and settings.pacing is PacingName.GOODPUT and not settings.pacing_costs:
        return Finding("pacing", Level.WRONG, "off: several ranks need PACELINE_PACING_COSTS (docs/pacing.md)")
    says = f"the policy {settings.pacing} chooses the draft steps of every round"
    if getattr(server_args, "attention_backend", "") == "triton":
        slow = "triton attention verifies by its kernel for prompts, so a round without drafts is no plain step"
        return Finding("pacing", Level.NOTE, f"{says}; {slow} (docs/gpu.md#what-it-costs)")
    return Finding("pacing", Level.OK, says)


def _retention(server_args: Any, settings: config.ServingConfig) -> Finding:
    if not settings.buffer.keeps_nothing:
        where = "Redis may keep what it captures on a disk; PACELINE_RETENTION=memory forbids it"
        return Finding(TOPIC, Level.OK, f"disk: {where} (docs/operations.md#zero-retention)")
    flags = [f"--{name.replace('_', '-')}" for name in WRITING_FLAGS if getattr(server_args, name)]
    if flags:
        given = " and ".join(flags)
        text = f"got {given}, expected none with PACELINE_RETENTION=memory: SGLang itself may write prompts to a disk"
        return Finding(TOPIC, Level.WRONG, text)
    return Finding(TOPIC, Level.OK, "memory: this server writes no prompt to a disk, and leaves no core dump")


def _room(server_args: Any, settings: config.ServingConfig) -> Finding:
    from sglang.srt.configs.model_config import ModelConfig

    model = ModelConfig.from_server_args(server_args)
    value_bytes = 1 if settings.quantised_to else model.dtype.itemsize
    features = _feature_layers() * model.hidden_size * value_bytes if settings.capture_features else 0
    kept = settings.buffer.max_bytes // (features + TOKEN_BYTES)
    return Finding(
        "traffic",
        Level.NOTE,
        f"a token takes about {features + TOKEN_BYTES} bytes, so PACELINE_BUFFER_MAX_BYTES keeps about {kept} tokens: "
        f"{kept / 1000:.0f} s at 1000 captured tokens per second; lower PACELINE_SAMPLE_RATE or raise it if learners "
        "take longer",
    )


def _feature_layers() -> int:
    """Layers of the target side by side in a feature row; a guess where the draft is not to be found."""
    from sglang.srt.runtime_context import get_model, get_spec

    from ...buffer.drafts.block_draft import settings_of
    from ...buffer.drafts.checkpoint import config_of, local_folder

    spec = get_spec()
    if not drafts_blocks():
        return 1 if spec.speculative_algorithm == "EAGLE" else FEATURE_LAYERS
    try:
        revision = spec.speculative_draft_model_revision
        folder = local_folder(spec.speculative_draft_model_path, revision, get_model().download_dir)
        named = settings_of(config_of(folder))
    except ConfigError:
        return FEATURE_LAYERS
    return len(named.get("target_layer_ids") or range(FEATURE_LAYERS))


_BY_SERVER: Final[dict[str, Callable[[Any, config.ServingConfig], Finding]]] = {
    "capture": _capture,
    sglang_quantisation.TOPIC: lambda server_args, _: sglang_quantisation.target_finding(server_args),
    "swap": _swap,
    "answers": _answers,
    "replay": _replay,
    "pacing": _pacing,
    TOPIC: _retention,
    "traffic": _room,
}


def main(arguments: Sequence[str]) -> int:
    """`--json` and `--debug`, if given, come first; all that follows are SGLang's flags. Returns the exit code."""
    own = {"--json", "--debug"} & {*arguments[:2]}
    findings = list[Finding]()
    as_json = "--json" in own
    flags = [argument for argument in arguments if argument not in own]
    try:
        findings.extend(examine(flags, config.from_env()))
    except Exception as fault:  # noqa: BLE001 - what ends the look is a finding too
        topic = "settings" if isinstance(fault, ConfigError) else "doctor"
        findings.append(Finding(topic, Level.WRONG, told(fault)))
        if "--debug" in own:
            traceback.print_exception(fault)
    for finding in findings:
        sys.stdout.write(f"{json.dumps(asdict(finding)) if as_json else finding.line()}\n")
    return exit_code(findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
