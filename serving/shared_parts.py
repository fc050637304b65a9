"""What every tensor-parallel rank hooks into SGLang."""

from dataclasses import dataclass

from . import sglang_speculation
from .capture.sglang_blocks import SglangBlocks
from .capture.sglang_forwards import SglangForwards
from .capture.sglang_ngram import SglangNgram
from .clock.shared_meter import SharedMeter
from .clock.step_clock import StepClock
from .config import ServingConfig
from .pacing.sglang_catch_up import SglangCatchUp
from .pacing.sglang_pacing import SglangPacing
from .swap.fetched_weights import FetchedWeights
from .swap.sglang_swap import RankSwap
from .target import sglang_target
from .target.sglang_guard import SglangGuard
from .target.sglang_target import SglangTarget
from .target.sglang_tokens import SglangTokens
from .target.target_updates import TargetUpdates


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """Hooked in alike on every rank: with other draft steps they would wait for ever."""

    target: SglangTarget
    swap: RankSwap
    pacing: SglangPacing
    clock: StepClock
    catch_up: SglangCatchUp
    tokens: SglangTokens
    forwards: SglangForwards  # of the workers that draft and verify in one call


def build_shared(settings: ServingConfig) -> SharedParts:
    """Build what every rank has. Uses no disk, process or network, so that it cannot fail on one rank alone."""
    clock = StepClock()
    pacing = SglangPacing(settings.pacing, settings.pacing_costs, meter=SharedMeter(clock))

    def draft_changed(took_s: float) -> None:
        clock.spent("swap", took_s)
        pacing.draft_changed()

    fetched = FetchedWeights(settings.cache_dir, settings.versions_cache_bytes)
    swap = RankSwap(settings.draft_version, settings.cache_dir, draft_changed, fetched)
    if not sglang_speculation.has_draft_model():
        swap.refuse("the server drafts without a model (NGRAM), so there is no draft to swap")
    catch_up = SglangCatchUp(settings.catch_up_bytes, clock.meter.discount, clock.meter.interrupt)
    updates = TargetUpdates(sglang_target.first_version(settings.target_version))
    target = SglangTarget(SglangGuard(lambda: not swap.fault), updates)
    tokens = SglangTokens()
    kind = SglangBlocks if sglang_speculation.drafts_blocks() else SglangNgram
    return SharedParts(
        target=target,
        swap=swap,
        pacing=pacing,
        clock=clock,
        catch_up=catch_up,
        tokens=tokens,
        forwards=kind(tokens.before_block, clock.before_block),
    )
