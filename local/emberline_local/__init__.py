"""A one-machine Kubernetes cluster for trying and testing Emberline."""
