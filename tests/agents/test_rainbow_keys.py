"""RainbowAgent with keys of another kind in its batches."""

from __future__ import annotations

from tests.agents.test_resets import make_buffer, make_rainbow


def test_it_reads_the_keys_that_its_loss_has() -> None:
    buffer = make_buffer(discrete=True)
    agent = make_rainbow(buffer)
    agent.value.set_keys(priority=("rl", "error"), pixels="seen")
    batch = buffer.sample()
    views = agent.task.sample(batch)
    batch.rename_key_("pixels", "seen").rename_key_(("next", "pixels"), ("next", "seen"))
    agent.begin_step(1)
    metrics = agent.update(batch, views, measure=True)
    assert metrics["td_error"] == batch["rl", "error"].mean() and metrics["latent_rank"] > 0
