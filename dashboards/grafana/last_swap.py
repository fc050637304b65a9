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
            title="Accept length gained",
            expression='avg by (speculator) (paceline_last_swap_accept_length{S,side="after"}'
            ' - ignoring (side) paceline_last_swap_accept_length{S,side="before"})',
            meaning="What was served after the newest swap less what was served before it, mean over replicas.",
            unknown="unknown: no swap, or nothing served on one side",
            steps={-100.0: WRONG, 0.0: WELL},
        ),
        Answer(
            title="Longest commit",
            expression='max by (speculator) (paceline_last_swap_seconds{S,part="commit"})',
            meaning="For so long no decode step ran.",
            unknown="unknown: no swap since the servers started",
            unit="s",
        ),
        Answer(
            title="Adopted after",
            expression="max by (speculator) (paceline_last_swap_timestamp_seconds{S})"
            f" - on (speculator) ({_LIVE_SINCE})",
            meaning="From the board's event to the last replica's swap; negative while none has followed it.",
            unknown="unknown: no swap since the servers started",
            unit="s",
        ),
        Answer(
            title="Replicas that do not follow",
            expression="count by (speculator) (paceline_member_draft{S}"
            " != on (speculator) group_left () paceline_live_draft{S})"
            " or on (speculator) (max by (speculator) (paceline_member_draft{S})"
            " and on (speculator) paceline_live_draft{S}) * 0",
            meaning="They draft with another version than the live one; a canary is one of them.",
            unknown="unknown: no replica tells",
            steps={0.0: WELL, 1.0: WRONG},
        ),
        Graph(
            title="Accept length",
            meaning="Of the last 5 minutes, of all replicas together and of each.",
            lines={
                "{{speculator}}": "paceline:accept_length:rate5m{S}",
                "{{member}}": "1 + rate(paceline_verify_accepted_total{S}[5m])"
                " / (rate(paceline_verify_rounds_total{S}[5m]) > 0)",
            },
        ),
        Graph(
            title="Draft of each replica",
            meaning="The live one of the board beside what every replica drafts with.",
            lines={
                "live": "paceline_live_draft{S}",
                "{{member}}": "paceline_member_draft{S}",
            },
        ),
        Graph(
            title="Longest decode steps",
            meaning="A swap that made requests wait shows as a step that took longer.",
            lines={
                "p99": "histogram_quantile(0.99, sum by (le) (rate(paceline_decode_step_seconds_bucket{S}[1m])))",
                "p50": "histogram_quantile(0.5, sum by (le) (rate(paceline_decode_step_seconds_bucket{S}[1m])))",
            },
            unit="s",
        ),
        Graph(
            title="Swaps",
            meaning="Done and refused since the replicas started.",
            lines={"{{result}}": "sum by (result) (paceline_swaps_total{S})"},
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
