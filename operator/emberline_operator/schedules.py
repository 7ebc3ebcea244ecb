"""The floor of an endpoint's engines: `scaling.minReplicas`, and more while one of `scaling.schedules` lasts. Pure.

A schedule begins as cron begins a job: what falls into the hour that is left out in spring begins when that is over, and what
falls into the hour that comes twice in autumn begins in the first. Its duration is real time. While it lasts it may begin again,
which only makes it last longer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from emberline_contract.resources import ScalingSpec

NUM_FIELDS: Final = 5
_MINUTE: Final = timedelta(minutes=1)
_LARGEST_SHIFT: Final = timedelta(hours=2)
"""By which a zone's clocks are set back at most; what the clock shows for the second time may have begun that long ago."""
_CACHED: Final = 4096


@dataclass(frozen=True, slots=True)
class Floor:
    """How many engines there are at least."""

    replicas: int
    schedule: str = ""
    """Name of the schedule that asks for so many; empty: `scaling.minReplicas`."""
    until: datetime | None = None
    """When a schedule begins or ends next; None: none ever does."""

    @property
    def words(self) -> str:
        """Where the number comes from."""
        if not self.schedule:
            return f"scaling.minReplicas {self.replicas}"
        return f"minReplicas {self.replicas} of scaling.schedules[{self.schedule}]"


@dataclass(frozen=True, slots=True)
class _Begins:
    """When a schedule began last, and when it begins next; None: never."""

    last: datetime | None
    next: datetime | None


def floor_at(scaling: ScalingSpec, now: datetime) -> Floor:
    """The floor of an accepted spec at a moment."""
    floor = Floor(scaling.min_replicas)
    times: list[datetime] = []
    for schedule in scaling.schedules:
        begins = _begins(schedule.cron, schedule.time_zone, now.replace(second=0, microsecond=0))
        if begins.next is not None:
            times.append(begins.next)
        end = begins.last + timedelta(seconds=schedule.duration_s) if begins.last is not None else now
        if end > now:
            times.append(end)
            if schedule.min_replicas > floor.replicas:
                floor = Floor(schedule.min_replicas, schedule.name)
    return Floor(floor.replicas, floor.schedule, min(times, default=None))


def wrong_schedules(scaling: ScalingSpec) -> list[str]:
    """What is wrong with the times of schedules, each with the remedy; the API server cannot tell."""
    wrong = []
    for schedule in scaling.schedules:
        complaint = _complaint(schedule.cron, schedule.time_zone)
        if complaint:
            wrong.append(f"scaling.schedules[{schedule.name}].{complaint}")
    return wrong


@functools.lru_cache(maxsize=_CACHED)
def _complaint(cron: str, zone: str) -> str:
    """What is wrong, empty if nothing is."""
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        # What is no file of a zone raises whatever reading it raises.
        return f"timeZone: there is no time zone {zone!r}; write an IANA name such as Europe/Berlin"
    num_fields = len(cron.split())
    if num_fields != NUM_FIELDS:
        what = f"{cron!r} has {num_fields} fields, not {NUM_FIELDS}"
    else:
        try:
            next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            what = f"{cron!r}: {error}"
        except StopIteration:
            what = f"{cron!r} is no day that ever comes"
        else:
            return ""
    return f"cron: {what}; write minute, hour, day of month, month and day of week, such as '0 8 * * 1-5'"


@functools.lru_cache(maxsize=_CACHED)
def _begins(cron: str, zone: str, minute: datetime) -> _Begins:
    """Around a minute. Schedules begin at whole minutes, so what is so at the minute is so until the next; many passes ask."""
    here = ZoneInfo(zone)
    earlier = _moments(CronSim(cron, (minute + _LARGEST_SHIFT + _MINUTE).astimezone(here), reverse=True))
    later = _moments(CronSim(cron, minute.astimezone(here)))
    return _Begins(
        next((moment for moment in earlier if moment <= minute), None),
        next((moment for moment in later if moment > minute), None),
    )


def _moments(times: Iterator[datetime]) -> Iterator[datetime]:
    return (time.astimezone(UTC) for time in times)
