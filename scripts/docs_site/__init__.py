"""Makes the documentation site: `make docs`.

`pages.py` puts all pages into one folder: those of docs/, those that they link to elsewhere in the repository, and
those that are generated (`api.py`, `settings.py`, `commands.py`, `results.py`). `scripts/build_docs.py` lets Zensical
make the site of them, and `links.py` checks every link of what came out. `maths.py` and `docstrings.py` extend the
generator.
"""
