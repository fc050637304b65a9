"""Is the loop healthy?"""

from .panels import WELL, WRONG, Answer, Graph, Page, Rows

#: Whether anything is wrong, whether traces are lost, and what learner and members do.
LOOP = Page(
    uid="paceline-loop",
    question="Is the loop healthy?",
    meaning="From captured traces to judged drafts, and who takes part.",
    panels=(
        Answer(
            "Alarms",
            "count by (speculator) (paceline_alarm{S}) or on (speculator) paceline_board_timestamp_seconds{S} * 0",
            "Active now; the table below names them.",
            "unknown: Redis or the exporter does not answer",
            steps={0.0: WELL, 1.0: WRONG},
        ),
        Answer(
            "Silent members",
            "count by (speculator) (paceline_board_timestamp_seconds{S} - on (speculator) group_right ()"
            " paceline_member_last_seen_timestamp_seconds{S} > 60)"
            " or on (speculator) max by (speculator) (paceline_member_alive{S}) * 0",
            "Not heard of for a minute, and did not say that they end.",
            "unknown: nobody was seen in 7 days",
            steps={0.0: WELL, 1.0: WRONG},
        ),
        Answer(
            "Traces lost",
            "(sum by (speculator) (increase(paceline_traces_total"
            '{S,fate="dropped",reason!="no_rounds"}[15m]))'
            " or sum by (speculator) (increase(paceline_traces_captured_total{S}[15m])) * 0)"
            " / (sum by (speculator) (increase(paceline_traces_captured_total{S}[15m])) > 0)",
            "Of the captured ones, in the last 15 minutes.",
            "unknown: nothing was captured",
            unit="percentunit",
            steps={0.0: WELL, 0.01: WRONG},
        ),
        Answer(
            "Buffer used",
            "max by (speculator) (paceline_buffer_bytes{S}) / (max by (speculator) (paceline_buffer_max_bytes{S}) > 0)",
            "A full buffer is normal: traces that were learnt stay for replay until new ones need the room.",
            "unknown: no learner tells",
            unit="percentunit",
        ),
        Graph(
            "Traces",
            "Captured, delivered and dropped, per second.",
            {
                "captured": "sum(rate(paceline_traces_captured_total{S}[5m]))",
                "{{fate}} {{reason}}": "sum by (fate, reason) (rate(paceline_traces_total{S}[5m]))",
            },
        ),
        Graph(
            "Buffer",
            "What came and what left, per second; every learner tells of the same buffer.",
            {
                "delivered": "max by (speculator) (rate(paceline_buffer_delivered_total{S}[5m]))",
                "{{outcome}}": "max by (speculator, outcome) (rate(paceline_buffer_acked_total{S}[5m]))",
                "trimmed unread": "max by (speculator) (rate(paceline_buffer_trimmed_total{S}[5m]))",
            },
        ),
        Graph(
            "Traces that wait",
            "In the buffer, and on their way to it.",
            {
                "unread": "max by (speculator) (paceline_buffer_pending{S})",
                "{{where}}": "sum by (where) (paceline_traces_waiting{S})",
            },
        ),
        Graph(
            "Learning rounds",
            "By kind and verdict, in the last hour.",
            {"{{kind}} {{verdict}}": "sum by (kind, verdict) (increase(paceline_rounds_total{S}[1h]))"},
        ),
        Graph(
            "What learners do",
            "Share of their time by phase.",
            {"{{member}} {{phase}}": "rate(paceline_learner_phase_seconds_total{S}[5m])"},
            unit="percentunit",
        ),
        Graph(
            "Last heard of",
            "Seconds since each member's last beat, by the clock of Redis.",
            {
                "{{member}}": "paceline_board_timestamp_seconds{S} - on (speculator) group_right ()"
                " paceline_member_last_seen_timestamp_seconds{S}"
            },
            unit="s",
        ),
        Rows("Alarms", "What is active, and who raises it.", "paceline_alarm{S}"),
        Rows(
            "Members",
            "1: alive. Of the last 7 days, but for those that said that they end.",
            "paceline_member_alive{S}",
        ),
    ),
)
