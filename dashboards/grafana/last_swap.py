"""What did the last swap do?"""

from .panels import WELL, WRONG, Answer, Graph, Mark, Page, Rows

_LIVE_SINCE = (
    "max by (speculator) (paceline_draft_changed_timestamp_seconds{S} * on (speculator, draft) group_left ()"
    ' max by (speculator, draft) (paceline_draft_info{S,state="live"}))'
)

#: Accept length before and after, how soon every replica had it, and whether anybody waited.
LAST_SWAP = Page(
    uid="paceline-swap",
    question="What did the last swap do?",
    meaning="Lines across the graphs are changes of the live draft.",
    panels=(
        Answer(
            "Accept length gained",
            'avg by (speculator) (paceline_last_swap_accept_length{S,side="after"}'
            ' - ignoring (side) paceline_last_swap_accept_length{S,side="before"})',
            "What was served after the newest swap less what was served before it, mean over replicas.",
            "unknown: no swap, or nothing served on one side",
            steps={-100.0: WRONG, 0.0: WELL},
        ),
        Answer(
            "Longest commit",
            'max by (speculator) (paceline_last_swap_seconds{S,part="commit"})',
            "For so long no decode step ran.",
            "unknown: no swap since the servers started",
            unit="s",
        ),
        Answer(
            "Adopted after",
            f"max by (speculator) (paceline_last_swap_timestamp_seconds{{S}}) - on (speculator) ({_LIVE_SINCE})",
            "From the board's event to the last replica's swap; negative while none has followed it.",
            "unknown: no swap since the servers started",
            unit="s",
        ),
        Answer(
            "Replicas that do not follow",
            "count by (speculator) (paceline_member_draft{S} != on (speculator) group_left () paceline_live_draft{S})"
            " or on (speculator) (max by (speculator) (paceline_member_draft{S})"
            " and on (speculator) paceline_live_draft{S}) * 0",
            "They draft with another version than the live one; a canary is one of them.",
            "unknown: no replica tells",
            steps={0.0: WELL, 1.0: WRONG},
        ),
        Graph(
            "Accept length",
            "Pooled, of the last 5 minutes.",
            {"{{speculator}}": "paceline:accept_length:rate5m{S}"},
        ),
        Graph(
            "Draft of each replica",
            "The live one of the board beside what every replica drafts with.",
            {
                "live": "paceline_live_draft{S}",
                "{{member}}": "paceline_member_draft{S}",
            },
        ),
        Graph(
            "Longest decode steps",
            "A swap that made requests wait shows as a step that took longer.",
            {
                "p99": "histogram_quantile(0.99, sum by (le) (rate(paceline_decode_step_seconds_bucket{S}[1m])))",
                "p50": "histogram_quantile(0.5, sum by (le) (rate(paceline_decode_step_seconds_bucket{S}[1m])))",
            },
            unit="s",
        ),
        Graph(
            "Swaps",
            "Done and refused since the replicas started.",
            {"{{result}}": "sum by (result) (paceline_swaps_total{S})"},
        ),
        Rows(
            "Newest versions",
            "By state.",
            "max by (speculator, draft, state, parent) (paceline_draft_info{S})",
            width=24,
        ),
    ),
    marks=(
        Mark("live draft changed", "changes(paceline_live_draft{S}[30s]) > 0", "blue"),
        Mark("swap refused", 'increase(paceline_swaps_total{S,result="refused"}[30s]) > 0', "red"),
    ),
)
