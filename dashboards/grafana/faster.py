"""Is it faster?"""

from .panels import WELL, WRONG, Answer, Graph, Page

_UNKNOWN = "not measured: no plain steps at these batch sizes; at most the accept length (docs/pacing.md)"

#: Speculative against plain decoding, and what the speed is made of.
FASTER = Page(
    uid="paceline-faster",
    question="Is it faster?",
    meaning="Drafting against plain decoding at the same batch sizes.",
    panels=(
        Answer(
            title="Times plain decoding",
            expression="paceline:speed_over_plain{S}",
            meaning="Tokens of speculative steps over what plain steps of the same batch sizes commit"
            " in the same time.",
            unknown=_UNKNOWN,
            steps={0.0: WRONG, 1.0: WELL},
            width=8,
        ),
        Answer(
            title="Tokens per second",
            expression="paceline:committed_tokens:rate1m{S}",
            meaning="Of all replicas together.",
            unknown="unknown: no replica tells",
            width=8,
        ),
        Answer(
            title="Accept length",
            expression="paceline:accept_length:rate5m{S}",
            meaning="Tokens per verify round of captured requests, the target's own one included;"
            " of the last 5 minutes.",
            unknown="unknown: no verify round of a captured request",
            width=8,
        ),
        Graph(
            title="Times plain decoding",
            meaning="Under 1, drafting costs more than it brings.",
            lines={"{{speculator}}": "paceline:speed_over_plain{S}"},
        ),
        Graph(
            title="Tokens per second, drafting and plain, by batch",
            meaning="Plain: the last ten minutes, else all since the start. Batch is the largest size of the bucket.",
            lines={
                "drafting, batch {{batch}}": "paceline:drafted_tokens:rate10m{S}"
                " / (paceline:drafted_seconds:rate10m{S} > 0)",
                "plain, batch {{batch}}": "paceline:plain_tokens_per_second{S}",
            },
        ),
        Graph(
            title="Step time by batch and drafted tokens",
            meaning="Mean time from one decode step to the next; 0 steps is plain decoding.",
            lines={
                "batch {{batch}}, {{steps}} steps": "sum by (batch, steps)"
                " (rate(paceline_decode_step_seconds_sum{S}[5m]))"
                " / (sum by (batch, steps) (rate(paceline_decode_step_seconds_count{S}[5m])) > 0)"
            },
            unit="s",
        ),
        Graph(
            title="Decode steps by drafted tokens",
            meaning="What pacing chose, where the server paces; steps per second.",
            lines={"{{steps}} steps": "sum by (steps) (rate(paceline_decode_step_seconds_count{S}[5m]))"},
        ),
        Graph(
            title="What the scheduler does",
            meaning="Share of its time by phase, mean over replicas.",
            lines={
                "{{phase}}": "sum by (phase) (rate(paceline_scheduler_seconds_total{S}[5m]))"
                " / on () group_left () sum(rate(paceline_scheduler_seconds_total{S}[5m]))"
            },
            unit="percentunit",
        ),
        Graph(
            title="Latency, as SGLang measures it",
            meaning="SGLang's own metrics: start it with --enable-metrics.",
            lines={
                "time to first token, p95": "histogram_quantile(0.95, sum by (le)"
                " (rate(sglang:time_to_first_token_seconds_bucket[5m])))",
                "whole request, p95": "histogram_quantile(0.95, sum by (le)"
                " (rate(sglang:e2e_request_latency_seconds_bucket[5m])))",
            },
            unit="s",
        ),
    ),
)
