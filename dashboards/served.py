"""What is served now: figures of the statuses and histories of all members, for the headline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..policies.readings.definitions import Reading
from ..policies.readings.served_totals import ServedDraft, served_drafts
from ..policies.readings.traffic_move import TrafficMove, traffic_move
from .snapshot import Snapshot
