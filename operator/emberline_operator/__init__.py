"""The kopf operator: one InferenceEndpoint becomes Deployments, Services and a status that never lies."""
