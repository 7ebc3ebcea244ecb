"""Which kinds of nodes there are. Of a thousand nodes that come and go only the first and the last of a kind are news to everybody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from emberline_operator.snapshot import NodeState

Kind = tuple[object, ...]

_GPU_LABELS: Final = (
    "nvidia.com/gpu", "nvidia.com/mig", "amd.com/gpu", "beta.amd.com/gpu", "cloud.google.com/gke-accelerator",
)  # fmt: skip
"""What labels begin with that tell GPUs apart."""


class NodeKinds:
    """Counts nodes by what placement asks of them: whether they take pods, GPUs, taints, and labels that a selector names."""

    def __init__(self) -> None:
        self._keys: Counter[str] = Counter()
        """Label keys that selectors of regions and endpoints name, and how many name them."""
        self._nodes: dict[str, NodeState] = {}
        self._kinds: dict[str, Kind] = {}
        self._num: Counter[Kind] = Counter()
        self._has_news = False

    def take_news(self) -> bool:
        """Whether a kind has come or gone since this was last asked."""
        has_news, self._has_news = self._has_news, False
        return has_news

    def change_selector(self, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        """A selector has come, changed or gone."""
        known = frozenset(self._keys)
        self._keys.subtract(old.keys())
        self._keys.update(new.keys())
        self._keys = +self._keys
        if known != self._keys.keys():
            self._kinds = {name: self._kind(node) for name, node in self._nodes.items()}
            self._num = Counter(self._kinds.values())

    def change_node(self, name: str, node: NodeState | None) -> None:
        """A node has come, changed or gone."""
        before = self._kinds.pop(name, None)
        self._nodes.pop(name, None)
        after = None
        if node is not None:
            self._nodes[name] = node
            after = self._kinds[name] = self._kind(node)
        if before == after:
            return
        if before is not None:
            self._num[before] -= 1
            if not self._num[before]:
                del self._num[before]
                self._has_news = True
        if after is not None:
            self._num[after] += 1
            self._has_news |= self._num[after] == 1

    def _kind(self, node: NodeState) -> Kind:
        labels = _sorted((key, value) for key, value in node.labels.items() if self._matters(key))
        taints = _sorted((taint.key, taint.value, taint.effect) for taint in node.taints)
        return (node.is_ready and not node.is_cordoned, labels, _sorted(node.gpus), taints)

    def _matters(self, key: str) -> bool:
        return key in self._keys or key.startswith(_GPU_LABELS)


def _sorted(items: Iterable[object]) -> tuple[object, ...]:
    return tuple(sorted(items, key=repr))
