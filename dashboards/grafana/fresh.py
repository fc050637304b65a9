"""Is it fresh?"""

from .panels import WRONG, Answer, Graph, Page, Rows

#: Which draft serves, what it serves against what was predicted, and whether the traffic moved.
FRESH = Page(
    uid="paceline-fresh",
    question="Is it fresh?",
    meaning="The draft that serves against the traffic that it serves.",
    panels=(
        Answer("Live draft", "paceline_live_draft{S}", "On the board.", "none is live: the first draft serves"),
        Answer(
            "Live for",
            "paceline_board_timestamp_seconds{S} - on (speculator) group_right () (max by (speculator)"
            " (paceline_draft_changed_timestamp_seconds{S} * on (speculator, draft) group_left ()"
            ' max by (speculator, draft) (paceline_draft_info{S,state="live"})))',
            "Since the live draft went live.",
            "none is live",
            unit="s",
        ),
        Answer(
            "Served over predicted",
            "paceline:live_accept_length:rate5m{S} / paceline:live_predicted_accept_length{S}",
            "Accept length that the live draft serves, over what replay predicted when it was published.",
            "unknown: nothing served, or nothing predicted",
            steps={0.0: WRONG, 0.85: "yellow", 0.95: "green"},
        ),
        Answer(
            "Oldest unread trace",
            "paceline:buffer_oldest_pending_seconds{S}",
            "For how long the oldest trace that nobody has learnt has waited.",
            "none waits, or no learner tells",
            unit="s",
            steps={0.0: "text", 900.0: WRONG},
        ),
        Graph(
            "Accept length by draft",
            "As served, of the last 5 minutes. What was predicted stands beside.",
            {"draft {{draft}}": "paceline:draft_accept_length:rate5m{S}"},
        ),
        Graph(
            "Predicted and served",
            "Of the draft that was live at the time.",
            {
                "served": "paceline:live_accept_length:rate5m{S}",
                "predicted": "paceline:live_predicted_accept_length{S}",
            },
        ),
        Graph(
            "Traffic by label",
            "Share of the verify rounds. `other` jumps when a label gives way to a newer one.",
            {
                "{{label}}": "sum by (label) (rate(paceline_label_verify_rounds_total{S}[5m]))"
                " / on () group_left () sum(rate(paceline_label_verify_rounds_total{S}[5m]))"
            },
            unit="percentunit",
        ),
        Graph(
            "Accept length by label",
            "A fall in all labels is the draft; a fall of the pooled figure alone is the traffic.",
            {"{{label}}": "paceline:label_accept_length:rate5m{S}"},
        ),
        Graph(
            "Acceptance by position",
            "How often the draft at a position is accepted when all before it were.",
            {"position {{position}}": "paceline:position_acceptance:rate5m{S}"},
            unit="percentunit",
        ),
        Rows(
            "Accept length that was predicted",
            "By draft, with its own weights on the newest requests when it was published.",
            "max by (speculator, draft) (paceline_gate_predicted_accept_length{S})",
        ),
    ),
)
