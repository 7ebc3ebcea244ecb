"""The only Kubernetes I/O of the operator: connection, caches, writes. Foreign errors become `errors.ClusterError` here."""
