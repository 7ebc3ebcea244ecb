"""Whether `model.servedName` reaches the endpoint.

Another's `<namespace>/<name>` is its own, and of several that want one name the oldest has it.
"""

from __future__ import annotations

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.resources import ModelSpec
from emberline_operator.plan.conditions import Verdict
from emberline_operator.snapshot import Rival, Snapshot, time_of


def judge_alias(model: ModelSpec, seen: Snapshot) -> Verdict:
    """The condition AliasReady. The gateway goes by the same order, so that status and answers agree."""
    alias, qualified = model.served_name, names.qualified_name(seen.namespace, seen.name)
    if alias is None:
        return Verdict(ConditionType.ALIAS_READY, "True", Reason.NO_ALIAS, f"clients put {qualified!r} in `model`")
    if seen.is_shadowed:
        message = (
            f"model.servedName {alias!r} is the name of another endpoint, which always has it; this one is reached as"
            f" {qualified!r}. Choose another name"
        )
        return Verdict(ConditionType.ALIAS_READY, "False", Reason.NAME_CONFLICT, message)
    metadata = seen.endpoint["metadata"]
    mine = Rival(time_of(metadata["creationTimestamp"]), seen.namespace, seen.name)
    holder = min((mine, *seen.rivals))
    if holder == mine:
        message = f"clients put {alias!r} or {qualified!r} in `model`"
        return Verdict(ConditionType.ALIAS_READY, "True", Reason.ALIAS_SERVED, message)
    message = (
        f"model.servedName {alias!r} belongs to the older endpoint {names.qualified_name(holder.namespace, holder.name)};"
        f" this one is reached as {qualified!r}. Choose another name, or remove it from the other one"
    )
    return Verdict(ConditionType.ALIAS_READY, "False", Reason.NAME_CONFLICT, message)
