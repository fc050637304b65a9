"""Is it fresh?"""

from .panels import WRONG, Answer, Graph, Page, Rows

#: Which draft serves, what it serves against what was predicted, and whether the traffic moved.
FRESH = Page(
    uid="paceline-fresh",
    question="Is it fresh?",
    meaning="The draft that serves against the traffic that it serves.",
    panels=(
        Answer(
            title="Live draft",
            expression="paceline_live_draft{S}",
            meaning="On the board.",
            unknown="none is live: the first draft serves",
        ),
        Answer(
            title="Live for",
            expression="paceline_board_timestamp_seconds{S} - on (speculator) group_right () (max by (speculator)"
            " (paceline_draft_changed_timestamp_seconds{S} * on (speculator, draft) group_left ()"
            ' max by (speculator, draft) (paceline_draft_info{S,state="live"})))',
            meaning="Since the live draft went live.",
            unknown="none is live",
            unit="s",
        ),
        Answer(
            title="Served over predicted",
            expression="paceline:live_accept_length:rate5m{S} / paceline:live_predicted_accept_length{S}",
            meaning="Accept length that the live draft serves, over what replay predicted when it was published.",
            unknown="unknown: nothing served, or nothing predicted",
            steps={0.0: WRONG, 0.85: "yellow", 0.95: "green"},
        ),
        Answer(
            title="Oldest unread trace",
            expression="paceline:buffer_oldest_pending_seconds{S}",
            meaning="For how long the oldest trace that nobody has learnt has waited.",
            unknown="none waits, or no learner tells",
            unit="s",
            steps={0.0: "text", 900.0: WRONG},
        ),
        Graph(
            title="Accept length by draft",
            meaning="As served, of the last 5 minutes. What was predicted stands beside.",
            lines={"draft {{draft}}": "paceline:draft_accept_length:rate5m{S}"},
        ),
        Graph(
            title="Predicted and served",
            meaning="Of the draft that was live at the time.",
            lines={
                "served": "paceline:live_accept_length:rate5m{S}",
                "predicted": "paceline:live_predicted_accept_length{S}",
            },
        ),
        Graph(
            title="Traffic by label",
            meaning="Share of the verify rounds. `other` jumps when a label gives way to a newer one.",
            lines={
                "{{label}}": "sum by (label) (rate(paceline_label_verify_rounds_total{S}[5m]))"
                " / on () group_left () sum(rate(paceline_label_verify_rounds_total{S}[5m]))"
            },
            unit="percentunit",
        ),
        Graph(
            title="Accept length by label",
            meaning="A fall in all labels is the draft; a fall of the pooled figure alone is the traffic.",
            lines={"{{label}}": "paceline:label_accept_length:rate5m{S}"},
        ),
        Graph(
            title="Acceptance by position",
            meaning="How often the draft at a position is accepted when all before it were.",
            lines={"position {{position}}": "paceline:position_acceptance:rate5m{S}"},
            unit="percentunit",
        ),
        Rows(
            "Accept length that was predicted",
            "By draft, with its own weights on the newest requests when it was published.",
            "max by (speculator, draft) (paceline_gate_predicted_accept_length{S})",
        ),
    ),
)
