import sys
from pathlib import Path

# Recipes are scripts: their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
