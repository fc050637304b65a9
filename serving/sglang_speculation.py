"""What SGLang resolved about speculation and parallelism, and what that means for capture and judging.

For the scheduler process only. The flags as given stay None wherever SGLang chooses by itself, so none is read.
"""

import functools
from typing import Any, Final

from ..buffer.board.speculation import NGRAM, Speculation
from ..buffer.errors import CaptureUnavailable, ConfigError
from ..buffer.stream.trace import VerdictRule

_BLOCKS: Final = "DFLASH"
#: Makes SGLang draft chains where it would choose a tree, as it does for every Llama.
CHAIN_FLAGS: Final = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


def check_speculation() -> None:
    """Raise CaptureUnavailable, with the flags that would work, unless this server's rounds can be captured."""
    from sglang.srt.runtime_context import get_disagg, get_parallel, get_spec

    spec = get_spec()
    parallel = get_parallel()
    mode = get_disagg().disaggregation_mode
    if spec.speculative_algorithm == "EAGLE":
        _check_mtp(spec)
    elif spec.speculative_algorithm == _BLOCKS:
        _check_blocks(spec)
    elif spec.speculative_algorithm not in {"EAGLE3", NGRAM}:
        raise CaptureUnavailable(
            f"speculation: got --speculative-algorithm {spec.speculative_algorithm}, expected EAGLE3, DFLASH, NGRAM, "
            "or NEXTN for a MiMo, GLM-4.5 or DeepSeek-V3 target"
        )
    if parallel.pp_size != 1:
        raise CaptureUnavailable(
            f"parallelism: got --pp-size {parallel.pp_size}, expected 1: SGLang pipelines MTP layers alone, where "
            "SGLANG_ENABLE_PP_SPEC is set, and paceline captures no pipeline; run several servers with SGLang's router "
            "before them instead"
        )
    if parallel.attn_dp_size != 1 and parallel.enable_dp_attention_local_control_broadcast:
        raise CaptureUnavailable(
            "parallelism: got --enable-dp-attention-local-control-broadcast, expected that it is left out: a swap "
            "reaches all ranks of data-parallel attention by the broadcast that it replaces"
        )
    if mode != "null":
        raise CaptureUnavailable(
            f"disaggregation: got --disaggregation-mode {mode}, expected none; neither server of such a pair sees a "
            "request from its prompt to its end, so run one server that does both"
        )


def _check_mtp(spec: Any) -> None:
    """Raise CaptureUnavailable unless SGLang drafts by an MTP layer that a learner has. It calls NEXTN EAGLE too."""
    from sglang.srt.runtime_context import get_model

    from ..buffer.drafts.checkpoint import CONFIG_FILE, architecture_of, local_folder
    from ..buffer.drafts.mtp_layer import ARCHITECTURES

    path = spec.speculative_draft_model_path
    if not path:
        raise CaptureUnavailable(
            "speculation: got NEXTN without --speculative-draft-model-path, expected there the target once more, whose "
            "checkpoint has the layer"
        )
    try:
        folder = local_folder(path, spec.speculative_draft_model_revision, get_model().download_dir)
        found = architecture_of(folder / CONFIG_FILE)
    except ConfigError as error:
        raise CaptureUnavailable(f"speculation: {error}") from error
    if found not in ARCHITECTURES:
        raise CaptureUnavailable(
            f"speculation: got NEXTN (or EAGLE) with a draft of {found or 'no architecture'}, expected one of "
            f"{', '.join(ARCHITECTURES)}: of the layers that targets bring, paceline learns theirs; gated attention "
            "and several layers are not built. Start the server with EAGLE3, if there is such a draft "
            "of this target"
        )


def _check_blocks(spec: Any) -> None:
    """Raise CaptureUnavailable unless SGLang drafts the blocks that a learner computes too."""
    from sglang.srt.runtime_context import get_model

    from ..buffer.drafts.block_draft import check_folder, settings_of
    from ..buffer.drafts.checkpoint import config_of, local_folder

    downloads = get_model().download_dir
    try:
        folder = local_folder(spec.speculative_draft_model_path, spec.speculative_draft_model_revision, downloads)
        check_folder(folder)
        size = settings_of(config_of(folder)).get("block_size")
    except ConfigError as error:
        raise CaptureUnavailable(f"speculation: {error}") from error
    if size != spec.speculative_num_draft_tokens:
        raise CaptureUnavailable(
            f"speculation: got blocks of {spec.speculative_num_draft_tokens} (--speculative-num-draft-tokens), "
            f"expected {size}, the block_size of the draft's config, by which learners draft; leave the flag out"
        )
    if spec.speculative_draft_window_size is not None:
        raise CaptureUnavailable(
            f"speculation: got --speculative-draft-window-size {spec.speculative_draft_window_size}, expected none: "
            "learners let a block see all that came before it"
        )
    target = _target_architecture()
    if target.startswith("Gemma"):
        raise CaptureUnavailable(
            f"speculation: got DFLASH with a target of {target}, expected one whose embeddings are not scaled"
        )


def _target_architecture() -> str:
    """As its config.json names it; empty where that is not to be found."""
    from sglang.srt.runtime_context import get_model

    from ..buffer.drafts.checkpoint import CONFIG_FILE, architecture_of, local_folder

    model = get_model()
    try:
        return architecture_of(local_folder(model.model_path, model.revision, model.download_dir) / CONFIG_FILE)
    except ConfigError:
        return ""


def drafts_blocks() -> bool:
    """Whether SGLang drafts a whole block in one forward (DFLASH), by a worker of another kind than EAGLE's."""
    from sglang.srt.runtime_context import get_spec

    return bool(get_spec().speculative_algorithm == _BLOCKS)


def has_draft_model() -> bool:
    """Whether weights propose drafts: not with NGRAM, whose server has no draft and keeps no hidden states for one."""
    from sglang.srt.runtime_context import get_spec

    return bool(get_spec().speculative_algorithm != NGRAM)


def why_replay_is_no_proof() -> str:
    """Why replay cannot judge a draft by every request of this server, in one sentence; empty where it can."""
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    if spec.speculative_algorithm is None:
        return ""
    rule = _rule_of(spec)
    if rule.decides_by_equality:
        return ""
    if rule is VerdictRule.REJECTION:
        return (
            f"requests above temperature 0 are verified by the rule {rule.value}: replay estimates what another draft "
            "would have had accepted, but of requests with top-k, top-p or edited logits it cannot tell"
        )
    return (
        f"requests above temperature 0 are verified by the rule {rule.value}, under which committed tokens do not show "
        "what another draft would have had accepted"
    )


def flags() -> Speculation | None:
    """Speculation flags, as SGLang resolved them; None before that, and on a fault."""
    try:
        from sglang.srt.runtime_context import get_spec

        spec = get_spec()
        return Speculation(
            algorithm=spec.speculative_algorithm,
            num_steps=_draft_steps(spec),
            eagle_topk=spec.speculative_eagle_topk,
            num_draft_tokens=spec.speculative_num_draft_tokens,
            adaptive=bool(spec.speculative_adaptive),
        )
    except Exception:  # noqa: BLE001 - a status without them is better than none
        return None


def draft_steps() -> int | None:
    """Drafts of a round, as SGLang resolved them; None where it does not speculate."""
    from sglang.srt.runtime_context import get_spec

    return _draft_steps(get_spec())


def _draft_steps(spec: Any) -> int | None:
    """SGLang says 1 of DFLASH, whatever its blocks, and of NGRAM what bounds none of its drafts."""
    if spec.speculative_algorithm in {_BLOCKS, NGRAM}:
        return int(spec.speculative_num_draft_tokens) - 1
    steps: int | None = spec.speculative_num_steps
    return steps


def has_draft_of_its_own() -> bool:
    """Whether the draft is a model apart from the target, not layers of the target's checkpoint, and there is one."""
    from sglang.srt.runtime_context import get_model, get_spec

    return get_spec().speculative_draft_model_path not in {None, get_model().model_path}


def is_counted(sampling_params: Any) -> bool:
    """Whether a request's logits depend on what it was answered so far: by penalties, or by `min_new_tokens`."""
    return bool(
        sampling_params.frequency_penalty
        or sampling_params.presence_penalty
        or sampling_params.repetition_penalty != 1.0
        or sampling_params.min_new_tokens
    )


@functools.cache
def sampled_rule() -> VerdictRule:
    """The rule by which this SGLang verifies a request at a temperature above 0.

    Some hosts commit the argmax whatever the temperature: SGLang's own predicate knows, plugins included.
    """
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative import dflash_utils, eagle_utils

    spec = get_spec()
    if spec.speculative_algorithm == _BLOCKS:
        return _rule_of(spec) if dflash_utils.is_dflash_sampling_verify_available() else VerdictRule.GREEDY
    if eagle_utils._verify_uses_greedy(  # noqa: SLF001 - the same answer that eagle_sample acts on
        is_all_greedy=False,
        is_cpu=eagle_utils._is_cpu,  # noqa: SLF001 - no public API
        is_hip=eagle_utils._is_hip,  # noqa: SLF001 - no public API
        is_xpu=eagle_utils._is_xpu,  # noqa: SLF001 - no public API
        use_rejection_sampling=bool(spec.speculative_use_rejection_sampling),
    ):
        return VerdictRule.GREEDY
    return _rule_of(spec)


def _rule_of(spec: Any) -> VerdictRule:
    """The rule that is configured, for a host that can sample."""
    is_drawn = spec.speculative_algorithm != _BLOCKS  # else the draft's best tokens, by which no rule differs
    if is_drawn and getattr(spec, "speculative_use_block_verification", False):  # SGLang 0.5.21 has no such setting
        return VerdictRule.BLOCK
    if spec.speculative_use_rejection_sampling:
        return VerdictRule.REJECTION
    thresholds = spec.speculative_accept_threshold_single, spec.speculative_accept_threshold_acc
    return VerdictRule.TARGET_ONLY if min(thresholds) >= 1.0 else VerdictRule.THRESHOLDS
