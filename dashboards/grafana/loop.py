"""Is the loop healthy?"""

from .panels import WELL, WRONG, Answer, Graph, Page, Rows

#: Whether anything is wrong, whether traces are lost, and what learner and members do.
LOOP = Page(
    uid="paceline-loop",
    question="Is the loop healthy?",
    meaning="From captured traces to judged drafts, and who takes part.",
    panels=(
        Answer(
            title="Alarms",
            expression="count by (speculator) (paceline_alarm{S})"
            " or on (speculator) paceline_board_timestamp_seconds{S} * 0",
            meaning="Active now; the table below names them.",
            unknown="unknown: Redis or the exporter does not answer",
            steps={0.0: WELL, 1.0: WRONG},
        ),
        Answer(
            title="Silent members",
            expression="count by (speculator) (paceline_board_timestamp_seconds{S} - on (speculator) group_right ()"
            " paceline_member_last_seen_timestamp_seconds{S} > 60)"
            " or on (speculator) max by (speculator) (paceline_member_alive{S}) * 0",
            meaning="Not heard of for a minute, and did not say that they end.",
            unknown="unknown: nobody was seen in 7 days",
            steps={0.0: WELL, 1.0: WRONG},
        ),
        Answer(
            title="Traces lost",
            expression="(sum by (speculator) (increase(paceline_traces_total"
            '{S,fate="dropped",reason!="no_rounds"}[15m]))'
            " or sum by (speculator) (increase(paceline_traces_captured_total{S}[15m])) * 0)"
            " / (sum by (speculator) (increase(paceline_traces_captured_total{S}[15m])) > 0)",
            meaning="Of the captured ones, in the last 15 minutes.",
            unknown="unknown: nothing was captured",
            unit="percentunit",
            steps={0.0: WELL, 0.01: WRONG},
        ),
        Answer(
            title="Buffer used",
            expression="max by (speculator) (paceline_buffer_bytes{S})"
            " / (max by (speculator) (paceline_buffer_max_bytes{S}) > 0)",
            meaning="A full buffer is normal: traces that were learnt stay for replay until new ones need the room.",
            unknown="unknown: no learner tells",
            unit="percentunit",
        ),
        Graph(
            title="Traces",
            meaning="Captured, delivered and dropped, per second.",
            lines={
                "captured": "sum(rate(paceline_traces_captured_total{S}[5m]))",
                "{{fate}} {{reason}}": "sum by (fate, reason) (rate(paceline_traces_total{S}[5m]))",
            },
        ),
        Graph(
            title="Buffer",
            meaning="What came and what left, per second; every learner tells of the same buffer.",
            lines={
                "delivered": "max by (speculator) (rate(paceline_buffer_delivered_total{S}[5m]))",
                "{{outcome}}": "max by (speculator, outcome) (rate(paceline_buffer_acked_total{S}[5m]))",
                "trimmed unread": "max by (speculator) (rate(paceline_buffer_trimmed_total{S}[5m]))",
            },
        ),
        Graph(
            title="Traces that wait",
            meaning="In the buffer, and on their way to it.",
            lines={
                "unread": "max by (speculator) (paceline_buffer_pending{S})",
                "{{where}}": "sum by (where) (paceline_traces_waiting{S})",
            },
        ),
        Graph(
            title="Learning rounds",
            meaning="By kind and verdict, in the last hour.",
            lines={"{{kind}} {{verdict}}": "sum by (kind, verdict) (increase(paceline_rounds_total{S}[1h]))"},
        ),
        Graph(
            title="What learners do",
            meaning="Share of their time by phase.",
            lines={"{{member}} {{phase}}": "rate(paceline_learner_phase_seconds_total{S}[5m])"},
            unit="percentunit",
        ),
        Graph(
            title="Last heard of",
            meaning="Seconds since each member's last beat, by the clock of Redis.",
            lines={
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
