"""Grafana's dashboards, one for each question, with its answer first; made by a library and written as JSON.

`python -m paceline.dashboards.grafana` writes boards/*.json again. Grafana reads these alone, and nothing else of
paceline imports this.
"""
