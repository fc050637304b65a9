"""Writes boards/*.json anew: `python -m paceline.dashboards.grafana`."""

from .files import write

write()
