"""The exporter: what the boards in a Redis say, as metrics for Prometheus.

In: boards, members' statuses and the counters in them, read at every scrape. Out: /metrics. Writes nothing and
keeps no figure between two scrapes: counters come from the members, and start again at 0 when a member does.
"""
