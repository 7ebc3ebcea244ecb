"""The torch executor: any device, paged KV, plain torch attention as the reference."""
