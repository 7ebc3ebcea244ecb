"""What GPUs there are, what they compute in, and what a model needs of them. Pure; the tables are in `gpu_table`."""
