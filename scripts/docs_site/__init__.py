"""Builds the documentation site: `make docs`.

`pages.py` puts all pages into one folder: the pages of docs/, other pages of the repository that they link to, and
generated pages (`api.py`, `settings.py`, `commands.py`, `results.py`). `scripts/build_docs.py` builds the site from
them with Zensical, and `links.py` checks every link of the site. `maths.py` and `docstrings.py` extend the generator.
"""
