"""The engine's programs as they are compiled for a GPU, on a machine that needs none."""
