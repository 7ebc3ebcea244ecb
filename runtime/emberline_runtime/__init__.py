"""The engine in a pod: scheduler, KV cache, executors and the OpenAI server."""
