"""What all children of one endpoint in one region share: name, labels, owner."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_contract import names
from emberline_operator.snapshot import Json


@dataclass(frozen=True, slots=True)
class Child:
    """The identity of an endpoint's objects in one region."""

    namespace: str
    endpoint: str
    uid: str
    """The endpoint's uid."""
    region: str

    @property
    def name(self) -> str:
        """Name of the Deployment and the Service."""
        return names.child_name(self.endpoint, self.region)

    @property
    def selector(self) -> dict[str, str]:
        """Labels that select the child's pods; they never change."""
        return {
            names.LABEL_APP: names.RUNTIME_NAME,
            names.LABEL_ENDPOINT: self.endpoint,
            names.LABEL_REGION: self.region,
        }

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every child and pod."""
        return {**self.selector, names.LABEL_MANAGED_BY: names.MANAGED_BY}

    def metadata(self, name: str, annotations: dict[str, str] | None = None) -> Json:
        """Metadata of a child. The owner reference alone deletes it, with or without an operator; there is no finalizer."""
        metadata: Json = {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels,
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.ENDPOINT_KIND,
                    "name": self.endpoint,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }
        if annotations:
            metadata["annotations"] = annotations
        return metadata
