"""What people see of the running system: answers of commands, the live page, figures for Prometheus, and Grafana.

In: board states, heartbeats and histories of counters. Out: tables, sentences, JSON, pages and metrics. Reads and never
writes; the acts that the live page offers are callables that its command hands in.
Used by the command line, rig, demo and benchmarks. Never imports torch, celery or sglang.
"""
