"""The HTTP front: holds, wakes, routes and streams."""
