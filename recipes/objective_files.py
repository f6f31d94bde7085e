"""The keys of the objectives' files in conf/shared/objective."""

from __future__ import annotations

from functools import cache

from omegaconf import DictConfig, OmegaConf, open_dict

from recipes.schema import CONF

OBJECTIVES = CONF / "shared" / "objective"


@cache
def objective_keys(name: str) -> frozenset[str] | None:
    """Returns the keys of an objective's file and of the files in its defaults; None if there is no file."""
    file = OBJECTIVES / f"{name}.yaml"
    if not file.is_file():
        return None
    listed = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(listed, dict)
    inherited = (objective_keys(base) or frozenset() for base in listed.pop("defaults", []))
    return frozenset(listed).union(*inherited)


def drop_foreign_keys(cfg: DictConfig) -> None:
    """Removes keys that a preset or a reference has set and that the chosen objective does not have."""
    if "objective" not in cfg or (keys := objective_keys(cfg.objective.name)) is None:
        return
    with open_dict(cfg):
        for key in set(cfg.objective) - keys:
            del cfg.objective[key]
