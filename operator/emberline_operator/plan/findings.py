"""What a pass found out about an endpoint and each of its regions, as far as it got. Status is made of this."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import Rejection
from emberline_operator.choice import Choice
from emberline_operator.decision import Decision, RegionPlacement, ResidencyVerdict
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.rollout import Rollout
from emberline_operator.plan.scaling import ScalePlan
from emberline_operator.plan.start import FailedStart
from emberline_operator.plan.via import Via
from emberline_operator.plan.weights import WeightsState
from emberline_operator.schedules import Floor
from emberline_operator.snapshot import Json, PodState, Snapshot


@dataclass(frozen=True, slots=True)
class RegionFindings:
    """One region that the endpoint names, or has objects in."""

    name: str
    placement: RegionPlacement | None = None
    """None: the spec cannot be acted on."""
    decision: Decision | None = None
    """What was decided there, also if it cannot be acted on now."""
    deployment: Json | None = None
    """The live one."""
    pods: tuple[PodState, ...] = ()
    is_template_new: bool = False
    """Whether the desired pod template is not the live one yet."""
    is_held_back: bool = False
    """Whether engines of the newest generation would be others, and none may be started."""
    rollout: Rollout | None = None
    scale: ScalePlan | None = None

    @property
    def failed_start(self) -> FailedStart | None:
        """The last start, if it failed."""
        return self.scale.start.failed if self.scale else None

    @property
    def desired(self) -> int:
        """Engines that should run there."""
        return replicas_of(self.deployment) if self.deployment else 0

    @property
    def num_alive(self) -> int:
        """Engines that are there and not about to end."""
        return sum(not pod.terminating for pod in self.pods)

    @property
    def lives(self) -> bool:
        """Whether an engine has a node and is not about to end."""
        return any(pod.node and not pod.terminating for pod in self.pods)

    @property
    def num_ready(self) -> int:
        """Engines that can answer."""
        return sum(pod.is_routable for pod in self.pods)

    @property
    def is_wanted(self) -> bool:
        """Whether engines shall run there."""
        return self.placement is None or self.placement.is_wanted

    @property
    def choice(self) -> Choice | None:
        """What was decided there."""
        return self.decision.choice if self.decision else None


@dataclass(frozen=True, slots=True)
class Findings:
    """All of a pass."""

    seen: Snapshot
    url: str
    rejection: Rejection | None = None
    spec: InferenceEndpointSpec | None = None
    """None: it could not be read."""
    via: Via | None = None
    floor: Floor | None = None
    weights: WeightsState | None = None
    regions: tuple[RegionFindings, ...] = ()
    residency: ResidencyVerdict | None = None

    @property
    def desired(self) -> int:
        """Engines that should run, over all regions."""
        return sum(region.desired for region in self.regions)

    @property
    def num_ready(self) -> int:
        """Engines that can answer, over all regions."""
        return sum(region.num_ready for region in self.regions)

    @property
    def back_off(self) -> FailedStart | None:
        """The failed start that keeps every region from starting an engine for a request: the one that does so for the shortest
        time. None: a request is held.
        """
        places = [region for region in self.regions if region.placement is not None]
        scaled = [it.scale for it in places if it.is_wanted and it.placement and it.placement.may_start]
        failed = [scale.start.failed for scale in scaled if scale is not None and scale.start.waits]
        if not failed or len(failed) < len(scaled):
            return None
        return min((it for it in failed if it is not None), key=lambda it: it.retry_time, default=None)

    @property
    def is_stopped(self) -> bool:
        """Whether the user has stopped the endpoint by hand."""
        return self.spec is not None and self.spec.scaling.via == "External" and self.spec.replicas == 0

    @property
    def is_there(self) -> bool:
        """Whether there is a Deployment in any region."""
        return any(region.deployment is not None for region in self.regions)
