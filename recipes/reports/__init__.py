"""The parts of recipes/report.py: runs are found, read, grouped and written down."""
