"""Where an engine's pod may run: node affinity, tolerations, spread over zones.

Only labels that stay are named, never nodes: what nodes come, go or are relabelled changes no pod template.
"""

from __future__ import annotations

from typing import Final

from emberline_contract.resources import InferenceEndpointSpec, Toleration
from emberline_operator.choice import Expression, Term
from emberline_operator.decision import Decision
from emberline_operator.desired.child import Child
from emberline_operator.hardware.taints import own_tolerations
from emberline_operator.snapshot import Json

NODE_LOSS_S: Final = 45
"""An engine on a node that does not answer is given up after this; Kubernetes' own default is 300 s."""
LABEL_ZONE: Final = "topology.kubernetes.io/zone"

_LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def node_affinity(decision: Decision) -> Json | None:
    """The region's labels and one of the choice's terms; None if any node will do."""
    region = tuple(Expression(key, "In", (value,)) for key, value in sorted(decision.node_labels.items()))
    terms = [(*region, *term) for term in decision.choice.terms or ((),)]
    if not all(terms):
        return None
    required = {"nodeSelectorTerms": [_selector_term(term) for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _selector_term(term: Term) -> Json:
    expressions = []
    for expression in term:
        made: Json = {"key": expression.key, "operator": expression.operator}
        if expression.values:
            made["values"] = list(expression.values)
        expressions.append(made)
    return {"matchExpressions": expressions}


def tolerations(spec: InferenceEndpointSpec) -> list[Json]:
    """Those of GPU nodes and lost nodes, and the user's."""
    made = [_toleration(toleration) for toleration in own_tolerations(spec)]
    asked = spec.placement.tolerations
    # Of several tolerations of one taint the shortest counts, so the user's own must stand alone.
    lost = [key for key in _LOST_NODE if not any(_tolerates_no_execute(toleration, key) for toleration in asked)]
    made += [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOSS_S} for key in lost
    ]
    return [*made, *(_toleration(toleration) for toleration in asked)]


def _tolerates_no_execute(toleration: Toleration, key: str) -> bool:
    return toleration.key in (None, key) and toleration.effect in (None, "NoExecute")


def _toleration(toleration: Toleration) -> Json:
    made = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
        "tolerationSeconds": toleration.toleration_seconds,
    }
    return {name: value for name, value in made.items() if value is not None and value != ""}


def spread_over_zones(child: Child) -> list[Json]:
    """A wish, since GPUs are scarce. Pods of each revision are spread by themselves, so that a roll-out does not skew them."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": LABEL_ZONE,
            "whenUnsatisfiable": "ScheduleAnyway",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": child.selector},
            "matchLabelKeys": ["pod-template-hash"],
        }
    ]
