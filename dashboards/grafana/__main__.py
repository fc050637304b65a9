"""Writes boards/*.json: `python -m paceline.dashboards.grafana`."""

from .files import write

write()
