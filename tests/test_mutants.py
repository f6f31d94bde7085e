"""Named one-line breaks of the code, each of which has to turn a named test red: ``make mutants``.

A mutant is the package with one line changed, in a folder of its own. A test that stays green with it proves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
HISTORIES = "tests/replay/test_buffer_histories.py::test_random_histories"
BY_HAND = "tests/replay/test_buffer.py::TestByHand"
GOLDEN = "tests/objectives/test_golden.py"
LOSS = "tests/objectives/test_masked_contrastive.py"
UPDATE = "tests/recipes/test_sac_update.py"
RUNS = "tests/recipes/test_sac_runs.py"
RESUME = "tests/recipes/test_resume.py"
RAINBOW = "tests/recipes/test_rainbow_update.py"
RAINBOW_ORDER = "tests/recipes/test_rainbow_order.py"
PPO = "tests/recipes/test_ppo_update.py"
ROLLOUTS = "tests/training/test_rollouts.py"
PROBE = "tests/training/test_probe.py"
ACTIONS = "tests/objectives/test_action_contrastive_task.py"
RECONSTRUCTION = "tests/objectives/test_masked_reconstruction_task.py"
STATISTICS = "tests/reports/test_statistics.py"
FAULTS_STOPPING = "tests/faults/test_stopping.py"
FAULTS_DISK = "tests/faults/test_disk_and_records.py"


@dataclass(frozen=True)
class Mutant:
    """What is broken, where, and the test that has to notice."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "floats pass as uint8 images",
        "envs/images.py",
        "as_declared = dtype == declared or",
        "as_declared = True or",
        "tests/faults/test_environments.py::test_an_image_of_another_dtype_than_declared_is_refused_when_it_comes",
    ),
    Mutant(
        "a grid of symbols is an image",
        "envs/images.py",
        "return min(sides) >= SMALLEST_SIDE",
        "return True",
        "tests/faults/test_environments.py::test_a_grid_of_symbols_is_no_image",
    ),
    Mutant(
        "the replay takes NaN rewards of later steps",
        "replay/step_reader.py",
        "if not math.isfinite(values[REWARD_KEY]):",
        "if False:",
        "tests/faults/test_refused_numbers.py::test_the_replay_takes_no_reward_that_is_not_finite",
    ),
    Mutant(
        "the film misses what flickers",
        "envs/atari_console.py",
        "return self._colors.max(0)",
        "return self._colors[1].copy()",
        "tests/training/test_films.py::test_atari_screens_are_those_of_a_coloured_console",
    ),
    Mutant(
        "cameras draw into pictures that were handed out",
        "envs/dmc.py",
        "return self._large_camera.render().copy()",
        "return self._large_camera.render()",
        "tests/training/test_films.py::test_dmc_draws_a_larger_picture_and_the_agent_sees_what_it_saw",
    ),
    Mutant(
        "a loaded policy acts in [-1, 1]",
        "training/policies.py",
        "if self._bounds is None:",
        "if True:",
        "tests/training/test_deployment.py::test_the_environment_sees_the_actions_of_training",
    ),
    Mutant(
        "cubes last too long",
        "transforms/mask_cubes.py",
        "grid.repeat_interleave(self.block_len, dim=0)[:length]",
        "grid.repeat_interleave(length, dim=0)[:length]",
        "tests/transforms/test_mask_cubes.py",
    ),
    Mutant(
        "MLR's targets have gradients",
        "objectives/masked_reconstruction_task.py",
        "    @torch.no_grad()\n    def _targets",
        "    def _targets",
        RECONSTRUCTION,
    ),
    Mutant(
        "MLR's actions have no positions",
        "modules/reconstruction.py",
        "actions + positions]",
        "actions]",
        RECONSTRUCTION,
    ),
    Mutant(
        "MLR's target projection stands still",
        "objectives/masked_reconstruction_task.py",
        "self.target_projection.step()",
        "pass",
        RECONSTRUCTION,
    ),
    Mutant(
        "the head's projection has noise",
        "modules/dueling.py",
        "if isinstance(layer, NoisyLinear):\n        return F.linear",
        "if False:\n        return F.linear",
        RECONSTRUCTION,
    ),
    Mutant(
        "after an episode's last observation an action is seen",
        "modules/actions.py",
        "tokens = self.embedding(action) * ~final.view(*latents.shape[:-1], 1)",
        "tokens = self.embedding(action)",
        ACTIONS,
    ),
    Mutant(
        "actions come before their observations",
        "modules/actions.py",
        "torch.stack([latents, tokens], dim=-2)",
        "torch.stack([tokens, latents], dim=-2)",
        ACTIONS,
    ),
    Mutant(
        "a window's ends need not be the right number of steps apart",
        "replay/windows.py",
        "same &= self._step[stop] - self._step[start] == length - 1",
        "pass",
        HISTORIES,
    ),
    Mutant(
        "a window may start in an unwritten row",
        "replay/windows.py",
        "same &= first != UNWRITTEN",
        "pass",
        HISTORIES,
    ),
    Mutant(
        "overwritten frames are taken for an episode's start",
        "replay/windows.py",
        "return available, (available == length) | begins",
        "return available, torch.ones_like(begins)",
        HISTORIES,
    ),
    Mutant(
        "stacks reach back over an episode's start",
        "replay/windows.py",
        "offsets = torch.maximum(offsets, -available[:, None])",
        "offsets = offsets.expand(len(start), -1)",
        HISTORIES,
    ),
    Mutant(
        "the seam is forgotten",
        "replay/windows.py",
        "linked &= time % self.rows.num_rows != self._seam",
        "pass",
        "tests/replay/test_slice_sampler.py::test_valid_slices",
    ),
    Mutant(
        "the newest half of the rows is never proposed",
        "replay/drawing.py",
        "propose=lambda size: draw(num_rows, size)",
        "propose=lambda size: draw(num_rows // 2, size)",
        "tests/replay/test_uniformity.py::test_transitions",
    ),
    Mutant(
        "a transition may be drawn before its n steps are there",
        "replay/transitions.py",
        "valid &= (ahead > 0) & (ended | (ahead == self.n_step))",
        "valid &= ahead > 0",
        HISTORIES,
    ),
    Mutant(
        "steps ahead run on around the ring",
        "replay/transitions.py",
        "same &= self._step[later] == self._step[anchors][:, None] + offsets",
        "pass",
        HISTORIES,
    ),
    Mutant(
        "importance weights are the wrong way round",
        "replay/transition_sampler.py",
        "weight = (weight / weight.min()) ** -self.beta",
        "weight = (weight / weight.max()) ** self.beta",
        "tests/replay/test_priorities.py::test_frequencies_and_weights_follow_the_formula",
    ),
    Mutant(
        "rewards after the end are counted",
        "replay/transitions.py",
        "rewards = torch.where(offsets < num_steps[:, None], rewards, 0)",
        "pass",
        BY_HAND,
    ),
    Mutant(
        "the first reward is discounted",
        "replay/transitions.py",
        "dtype=rewards.dtype) ** offsets)",
        "dtype=rewards.dtype) ** (offsets + 1))",
        BY_HAND,
    ),
    Mutant(
        "stale rows get priorities",
        "replay/buffer.py",
        "current &= rows.scalars(STEP_KEY)[flat] == data.get(STEP_KEY).to(flat.device)",
        "current = torch.ones_like(current)",
        "tests/replay/test_priorities.py::test_update_from_a_batch_leaves_overwritten_rows_alone",
    ),
    Mutant(
        "slices have a lock of their own",
        "replay/slices.py",
        "self._replay_lock = buffer._replay_lock",
        "pass",
        "tests/replay/test_buffer.py::TestPrefetch::test_no_batch_is_corrupt",
    ),
    Mutant(
        "the last row shows the frame before",
        "replay/writer.py",
        "steps.next_frames.flatten(0, 1).index_select(0, at_end),",
        "steps.frames.flatten(0, 1).index_select(0, at_end),",
        BY_HAND,
    ),
    Mutant(
        "an episode that was left is not noticed",
        "replay/writer.py",
        'begins[0] |= (steps.frames[0] != state["next_frame"]).flatten(1).any(-1)',
        "pass",
        BY_HAND,
    ),
    Mutant(
        "trajectory ids are used twice",
        "replay/writer.py",
        "self._next_trajectory += plan.num_new",
        "pass",
        HISTORIES,
    ),
    Mutant(
        "padding is one frame short",
        "stacking.py",
        "missing = (num_frames - 1 - step).clamp(min=0)",
        "missing = (num_frames - 2 - step).clamp(min=0)",
        "tests/transforms/test_stack_frames.py::test_against_doing_it_by_hand",
    ),
    Mutant(
        "a running stack keeps its oldest frame",
        "stacking.py",
        "older = self._frames.unbind(len(self._batch))[1:]",
        "older = self._frames.unbind(len(self._batch))[:-1]",
        "tests/test_stacking.py::test_frame_by_frame",
    ),
    Mutant(
        "all episodes of a batch begin where one does",
        "stacking.py",
        "if begins is not None and self._frames is not None:",
        "if False:",
        "tests/test_stacking.py::test_episodes_of_a_batch_begin_apart",
    ),
    Mutant(
        "an environment does not say which episodes begin",
        "envs/gym.py",
        'None if tensordict is None else tensordict.get("_reset", None)',
        "None",
        "tests/test_stacking.py::test_an_environment_stacks_as_catframes_does",
    ),
    Mutant(
        "an Atari episode begins with the frames of the last one",
        "envs/atari.py",
        "        self._stack.clear()\n",
        "",
        "tests/envs/test_atari.py",
    ),
    Mutant(
        "padding of another kind is not noticed",
        "replay/step_reader.py",
        "if (is_padded[other] & ~is_padded[self.padding]).any():",
        "if False:",
        "tests/replay/test_buffer.py",
    ),
    Mutant(
        "upper sums are not updated",
        "replay/sum_tree.py",
        "for below, level in zip(self._levels, self._levels[1:], strict=False):",
        "for below, level in zip(self._levels[:1], self._levels[1:], strict=False):",
        "tests/replay/test_sum_tree.py::test_updates_at_all_sizes",
    ),
    Mutant(
        "a weight of 0 can be found",
        "replay/sum_tree.py",
        "child = torch.searchsorted(sums, remaining[..., None], right=True)[..., 0]",
        "child = torch.searchsorted(sums, remaining[..., None])[..., 0]",
        "tests/replay/test_sum_tree.py::test_finds_what_a_running_sum_finds",
    ),
    Mutant(
        "a row that changed after it was saved is not saved again",
        "replay/archive.py",
        "first = [max(last - 1, old)",
        "first = [max(last, old)",
        "tests/replay/test_archive.py::TestIncremental",
    ),
    Mutant(
        "files are written in place",
        "files.py",
        'part = target.with_name(f".{target.name}.part")',
        "part = target",
        "tests/replay/test_archive.py::TestFaults::test_killed_in_the_middle_of_a_save",
    ),
    Mutant(
        "damaged content is not noticed",
        "replay/archive.py",
        "if zlib.crc32(content) != crc32:",
        "if False:",
        "tests/replay/test_archive.py::TestFaults::test_one_bit_flipped",
    ),
    Mutant(
        "mask polarity is flipped",
        "transforms/mask_observations.py",
        "masked = self._rand(len(images), images.device) < self.mask_ratio",
        "masked = self._rand(len(images), images.device) >= self.mask_ratio",
        "tests/transforms/test_mask_observations.py::test_how_often",
    ),
    Mutant(
        "hidden observations are not all asked for",
        "transforms/mask_observations.py",
        "zip(self.out_keys, (hidden, masked, zeroed), strict=True)",
        "zip(self.out_keys, (hidden, zeroed, zeroed), strict=True)",
        "tests/transforms/test_mask_observations.py::test_how_often",
    ),
    Mutant(
        "replacements come from the own slice",
        "transforms/mask_observations.py",
        "return ((replaced // length + 1) * length + number) % count",
        "return (replaced // length * length + number % length) % count",
        "tests/transforms/test_mask_observations.py::test_replacements_come_from_other_slices",
    ),
    Mutant(
        "what is read is changed",
        "transforms/mask_observations.py",
        "hidden = images.clone()",
        "hidden = images",
        "tests/transforms/test_mask_observations.py::test_keys_of_ones_own",
    ),
    Mutant(
        "crop offsets miss the last place",
        "transforms/crops.py",
        "self._draw(side - kept + 1, images, repeats) for side",
        "self._draw(max(side - kept, 1), images, repeats) for side",
        "tests/transforms/test_crops.py::TestRandomCrop::test_every_place_occurs_equally_often",
    ),
    Mutant(
        "crops are off by one",
        "transforms/functional.py",
        "columns + left.view(-1, 1, 1)) * depth",
        "columns + left.view(-1, 1, 1) - 1).clamp(min=0) * depth",
        "tests/transforms/test_crops.py::TestOneByOne::test_crop",
    ),
    Mutant(
        "a shift repeats what is below the border",
        "transforms/functional.py",
        ".clamp_(0, height - 1)",
        ".clamp_(0, height)",
        "tests/transforms/test_crops.py::TestOneByOne::test_shift",
    ),
    Mutant(
        "a network does not get its own parameters back",
        "objectives/parameters.py",
        "            place[name] = own\n",
        "            pass\n",
        "tests/objectives/test_parameters.py",
    ),
    Mutant(
        "a row's history may be of another episode",
        "replay/windows.py",
        "whole = (self._trajectory[oldest] == self._trajectory[start]) & (self._step[oldest] == step - available)",
        "whole = torch.ones_like(step, dtype=torch.bool)",
        BY_HAND,
    ),
    Mutant(
        "a single step is stored without being compared",
        "replay/step_reader.py",
        "if not torch.equal(newest, frame):",
        "if False:",
        "tests/replay/test_writer.py",
    ),
    Mutant(
        "one crop for the whole batch",
        "transforms/crops.py",
        'if self.per == "sample":\n            return 1',
        'if self.per == "sample":\n            return max(lead.numel(), 1)',
        "tests/transforms/test_crops.py::TestRandomCrop::test_every_place_occurs_equally_often",
    ),
    Mutant(
        "negatives from the wrong axis",
        "objectives/functional.py",
        'if negatives == "batch":',
        'if negatives == "sequence":',
        GOLDEN,
    ),
    Mutant(
        "queries and keys are swapped",
        "objectives/functional.py",
        "logits = queries @ keys.transpose(-1, -2) / temperature",
        "logits = keys @ queries.transpose(-1, -2) / temperature",
        GOLDEN,
    ),
    Mutant(
        "the mean is over all places",
        "objectives/functional.py",
        "total / masked.sum().clamp(min=1)",
        "total / masked.numel()",
        GOLDEN,
    ),
    Mutant(
        "keys are not detached",
        "objectives/encoding.py",
        "with torch.no_grad():",
        "with torch.enable_grad():",
        f"{LOSS}::TestGradients {GOLDEN}",
    ),
    Mutant(
        "keys come from the online encoder",
        "objectives/encoding.py",
        "return call_with(self.target_encoder_network_params, self.encoder_network, pixels)",
        "return call_with(self.encoder_network_params, self.encoder_network, pixels)",
        f"{LOSS}::TestGradients",
    ),
    Mutant(
        "the target follows the wrong encoder",
        "objectives/encoding.py",
        "create_target_params=not shared",
        "create_target_params=False",
        f"{LOSS}::TestGradients",
    ),
    Mutant(
        "the shortcut takes the wrong latent",
        "objectives/masked_contrastive.py",
        "place = torch.where(blank, len(shown), (~blank).cumsum(0) - 1)",
        "place = torch.where(blank, len(shown), (~blank).cumsum(0)).clamp(max=len(shown))",
        GOLDEN,
    ),
    Mutant(
        "the shortcut ignores dropout",
        "objectives/masked_contrastive.py",
        "or _is_stochastic(self.encoder_network)",
        "",
        f"{LOSS}::TestGradients",
    ),
    Mutant(
        "dropout on the key side",
        "objectives/masked_contrastive.py",
        "self.context_network.eval()  # no dropout on this side",
        "pass",
        f"{LOSS}::TestGradients",
    ),
    Mutant(
        "positions are off by one",
        "modules/context.py",
        "position = torch.arange(length, device=device, dtype=torch.float32)[:, None]",
        "position = torch.arange(1, length + 1, device=device, dtype=torch.float32)[:, None]",
        GOLDEN,
    ),
    Mutant(
        "sine and cosine change places",
        "modules/context.py",
        "torch.where(place % 2 == 0, angle.sin(), angle.cos())",
        "torch.where(place % 2 == 1, angle.sin(), angle.cos())",
        "tests/modules/test_context.py::test_positions_against_the_formula",
    ),
    Mutant(
        "attention is scaled where the paper does not",
        "modules/context.py",
        "scale = None if scale_attention else 1.0",
        "scale = None",
        GOLDEN,
    ),
    Mutant(
        "pixels are not scaled",
        "modules/encoders.py",
        "images = images.to(self.dtype).div_(255.0)",
        "images = images.to(self.dtype)",
        GOLDEN,
    ),
    Mutant(
        "the learning rate never falls",
        "objectives/schedules.py",
        "return (warmup_steps / step) ** 0.5",
        "return 1.0",
        "tests/objectives/test_schedules.py",
    ),
    Mutant(
        "the next critic latent comes from the online encoder",
        "objectives/latent_sac.py",
        'latents.set(("next", "critic_latent"), self.target_encoder(pixels))',
        'latents.set(("next", "critic_latent"), self.encoder(pixels))',
        UPDATE,
    ),
    Mutant(
        "the next actor latent comes from the critic's projection",
        "objectives/latent_sac.py",
        "self.policy.projection(self.policy.encoder.features(pixels)))",
        "self.policy.encoder(pixels))",
        UPDATE,
    ),
    Mutant(
        "the actor's loss reaches the convolutions",
        "objectives/latent_sac.py",
        """        with torch.no_grad():
            features = self""",
        """        if True:
            features = self""",
        f"{RUNS}::test_the_actor_loss_never_reaches_the_convolutions",
    ),
    Mutant(
        "alpha's loss is linear in its logarithm",
        "objectives/latent_sac.py",
        "self.sac.log_alpha.exp() * -(log_prob",
        "self.sac.log_alpha * -(log_prob",
        "tests/objectives/test_latent_sac.py",  # Adam takes out the difference, so that no update shows it
    ),
    Mutant(
        "Q's loss is not squared",
        "objectives/latent_sac.py",
        'loss_function="l2"',
        'loss_function="smooth_l1"',
        UPDATE,
    ),
    Mutant(
        "the copy moves the wrong way",
        "modules/momentum.py",
        "target.lerp_(source, self.tau)",
        "target.lerp_(source, 1 - self.tau)",
        "tests/modules/test_momentum.py::test_a_momentum_copy_follows_by_tau",
    ),
    Mutant(
        "the scale is bounded elsewhere",
        "modules/heads.py",
        "(torch.tanh(log_std) + 1)",
        "torch.tanh(log_std)",
        "tests/modules/test_heads.py",
    ),
    Mutant(
        "targets move before the actor",
        "../recipes/conf/sac/reference/code.yaml",
        "[critic, actor, targets, auxiliary]",
        "[critic, targets, actor, auxiliary]",
        "tests/recipes/test_sac_configs.py",
    ),
    Mutant(
        "the contrastive step comes before the targets",
        "../recipes/conf/sac/reference/code.yaml",
        "[critic, actor, targets, auxiliary]",
        "[critic, actor, auxiliary, targets]",
        UPDATE,
    ),
    Mutant(
        "the encoder's contrastive learning rate is not doubled",
        "../recipes/conf/sac/reference/code.yaml",
        "encoder_lr_scale: 2.0",
        "encoder_lr_scale: 1.0",
        UPDATE,
    ),
    Mutant(
        "the actor steps in every update",
        "agents/sac.py",
        "self._update % self.actor_interval == 0",
        "True",
        UPDATE,
    ),
    Mutant(
        "random states are not saved",
        "training/run.py",
        '"random": GlobalRNGState(), ',
        "",
        f"{RESUME}::test_terminated_and_resumed",
    ),
    Mutant(
        "a changed state is not noticed",
        "training/checkpoints.py",
        'if hashlib.sha256(content).hexdigest() != state["sha256"]:',
        "if False:",
        "tests/training/test_checkpoints.py::test_each_byte_of_the_file",
    ),
    Mutant(
        "a changed first line is not noticed",
        "training/checkpoints.py",
        "if hashlib.sha256(text).hexdigest().encode() != digest:",
        "if False:",
        "tests/training/test_checkpoints.py::test_each_byte_of_the_file",
    ),
    Mutant(
        "states may run code",
        "training/checkpoints.py",
        'map_location="cpu", weights_only=True)',
        'map_location="cpu", weights_only=False)',
        "tests/training/test_checkpoints.py::test_no_code_is_run",
    ),
    Mutant(
        "random states are restored before other components draw",
        "training/checkpoints.py",
        "key=lambda name: (isinstance(components[name], GlobalRNGState), name)",
        "key=lambda name: name",
        "tests/training/test_checkpoints.py::test_random_states_are_restored_last",
    ),
    Mutant(
        "a checkpoint is in place before its replay is saved",
        "files.py",
        """        if before_rename is not None:
            before_rename()
""",
        """    if before_rename is not None:
        before_rename()
""",
        "tests/training/test_checkpoints.py::test_any_moment",
    ),
    Mutant(
        "a changed manifest of a saved replay is not noticed",
        "replay/archive.py",
        'if manifest.get("crc32") != _checksum(manifest):',
        "if False:",
        "tests/replay/test_archive.py",
    ),
    Mutant(
        "TensorBoard keeps the points of before the run was resumed",
        "training/trackers.py",
        "writer.purge_step = resume_step + 1",
        "pass",
        "tests/training/test_trackers.py",
    ),
    Mutant(
        "a resumed run has the learning rate of before",
        "agents/optimizing.py",
        'group.update({**given, "lr": lr})',
        "pass",
        "tests/recipes/test_sac_faults.py::test_a_loss_that_is_not_finite",
    ),
    Mutant(
        "an episode that was under way begins anew",
        "training/episodes.py",
        "            self.take(action)",
        "            pass",
        "tests/training/test_episodes.py",
    ),
    Mutant(
        "evaluation uses the policy's noise",
        "agents/sac.py",
        "return self.policy(observations.to(self.device)).cpu()",
        "return self.policy.sample(observations.to(self.device)).cpu()",
        f"{RUNS}::test_a_loaded_policy_acts_as_the_trained_one",
    ),
    Mutant(
        "rows of after the checkpoint stay",
        "training/run.py",
        "self.directory.truncate_after(restored.step)",
        "pass",
        RESUME,
    ),
    Mutant(
        "an action is repeated over the episode's end",
        "envs/dmc.py",
        "            if time_step.last():\n                break",
        "            pass",
        "tests/envs/test_dmc.py::test_the_last_step_repeats_only_to_the_time_limit",
    ),
    Mutant(
        "the target network is copied a step late",
        "agents/rainbow.py",
        "if step % self.target_interval == 0:",
        "if step % self.target_interval == 1:",
        RAINBOW_ORDER,
    ),
    Mutant(
        "the online network's noise is never drawn again",
        "agents/rainbow.py",
        "self.policy.reset_noise()  # to act",
        "pass  # to act",
        RAINBOW_ORDER,
    ),
    Mutant(
        "the target network's noise is never drawn again",
        "agents/rainbow.py",
        "        self.value.reset_target_noise()\n",
        "",
        RAINBOW_ORDER,
    ),
    Mutant(
        "the contrastive loss's weight is ignored",
        "objectives/contrastive_task.py",
        "self.coeff * out.pop",
        "out.pop",
        RAINBOW,
    ),
    Mutant(
        "gradients are not clipped",
        "agents/rainbow.py",
        "max_norm=self.max_gradient_norm or math.inf",
        "max_norm=math.inf",
        RAINBOW,
    ),
    Mutant(
        "priorities are not written back",
        "../recipes/rainbow_mcurl.py",
        "            buffer.update_tensordict_priority(batch)\n",
        "",
        RAINBOW_ORDER,
    ),
    Mutant(
        "importance weights correct in full from the start",
        "agents/rainbow.py",
        "self.sampler.beta = self._beta_of(step)",
        "self.sampler.beta = 1.0",
        RAINBOW_ORDER,
    ),
    Mutant(
        "priorities are weighted by the importance weights",
        "objectives/noisy_targets.py",
        "tensordict.set(self.tensor_keys.priority, td_error)",
        "tensordict.set(self.tensor_keys.priority, td_error * tensordict.get('priority_weight', torch.ones(())))",
        RAINBOW,
    ),
    Mutant(
        "the discount is that of one step",
        "objectives/categorical_dqn.py",
        "torch.pow(self.gamma, transitions.steps)",
        "torch.pow(self.gamma, torch.ones_like(transitions.steps))",
        "tests/objectives/test_categorical_dqn.py",
    ),
    Mutant(
        "a terminal state is worth something",
        "objectives/categorical_dqn.py",
        "torch.where(transitions.terminated, 0.0, torch.pow",
        "torch.where(transitions.terminated, 1.0, torch.pow",
        "tests/objectives/test_categorical_dqn.py",
    ),
    Mutant(
        "the target network picks the next action itself",
        "objectives/noisy_targets.py",
        "chooser = self._online(next_pixels) if self.double_dqn else following",
        "chooser = following",
        "tests/objectives/test_categorical_dqn.py",
    ),
    Mutant(
        "a share of the probability goes to the wrong neighbour",
        "objectives/categorical_dqn.py",
        "(1 - distance).clamp(min=0)",
        "(1 - distance).clamp(min=0).flip(1)",
        "tests/objectives/test_categorical_dqn.py",
    ),
    Mutant(
        "advantages are not centred",
        "modules/dueling.py",
        " - advantage.mean(-2, keepdim=True)",
        "",
        "tests/modules/test_rainbow.py",
    ),
    Mutant(
        "the sigmas get no gradient",
        "modules/dueling.py",
        "torch.addcmul(self.weight_mu, self.weight_sigma, torch",
        "torch.addcmul(self.weight_mu, self.weight_sigma.detach(), torch",
        "tests/learning/test_noise.py",
    ),
    Mutant(
        "there is noise in evaluation",
        "modules/dueling.py",
        "        if not self.training:\n",
        "        if False:\n",
        "tests/modules/test_rainbow.py",
    ),
    Mutant(
        "CURL's projection has its ReLU before the norm",
        "modules/projections.py",
        "            nn.LayerNorm(hidden_dim, elementwise_affine=False),\n            nn.ReLU(),\n",
        "            nn.ReLU(),\n            nn.LayerNorm(hidden_dim, elementwise_affine=False),\n",
        "tests/modules/test_projections.py",
    ),
    Mutant(
        "a lost life starts a new game",
        "envs/atari.py",
        "self._game_goes_on = lost_life and not self._console.finished",
        "self._game_goes_on = False",
        "tests/envs/test_atari.py",
    ),
    Mutant(
        "a pixel's mean leaves out parts of pixels",
        "envs/atari_console.py",
        ' + values.take(whole, axis, mode="clip") * parts',
        "",
        "tests/envs/test_atari.py::test_area_resizing_is_the_mean_of_what_a_pixel_covers",
    ),
    Mutant(
        "a pixel's mean is rounded down",
        "envs/atari_console.py",
        "(totals + self._area // 2) // self._area",
        "totals // self._area",
        "tests/envs/test_atari.py::test_area_resizing_is_the_mean_of_what_a_pixel_covers",
    ),
    Mutant(
        "screens are shrunk bilinearly, whatever was asked for",
        "envs/atari.py",
        'AreaResize if interpolation == "area" else BilinearResize',
        "BilinearResize",
        "tests/envs/test_atari.py::test_an_environment_resizes_as_told",
    ),
    Mutant(
        "random actions of an evaluation come from the global generator",
        "training/evaluation.py",
        "generator_of(episode).random() >= epsilon",
        "np.random.random() >= epsilon",
        "tests/training/test_evaluation.py",
    ),
    Mutant(
        "the last evaluation is as short as the others",
        "training/run.py",
        "episodes = plan.evaluation_episodes if final is None else final",
        "episodes = plan.evaluation_episodes",
        "tests/training/test_evaluation.py",
    ),
    Mutant(
        "the IQM leaves out a quarter that is rounded up",
        "reports/statistics.py",
        "cut = int(_TRIMMED * count)",
        "cut = math.ceil(_TRIMMED * count)",
        f"{STATISTICS}::test_iqm_by_hand",
    ),
    Mutant(
        "a tie counts whole",
        "reports/statistics.py",
        "0.5 * (first == second)",
        "1.0 * (first == second)",
        f"{STATISTICS}::test_improvement_is_mann_whitneys_u",
    ),
    Mutant(
        "a profile counts what is at its threshold",
        "reports/statistics.py",
        "(pooled > threshold)",
        "(pooled >= threshold)",
        f"{STATISTICS}::test_profile_counts_what_is_strictly_above",
    ),
    Mutant(
        "two seeds have an interval",
        "reports/statistics.py",
        "FEWEST_SEEDS = 3",
        "FEWEST_SEEDS = 2",
        f"{STATISTICS}::test_fewer_than_three_seeds_have_no_interval",
    ),
    Mutant(
        "PPO takes the first observation of the next episode for an episode's last",
        "objectives/latent_ppo.py",
        'ends = steps["next", "done"].squeeze(-1).clone()',
        'ends = torch.zeros_like(steps["next", "done"].squeeze(-1))',
        PPO,
    ),
    Mutant(
        "PPO's rollout ends without the value of what follows",
        "objectives/latent_ppo.py",
        "        ends[:, -1] = True\n",
        "",
        PPO,
    ),
    Mutant(
        "PPO's clipping does not fall",
        "agents/ppo.py",
        "        self.losses.scale_clipping(scale)\n",
        "",
        PPO,
    ),
    Mutant(
        "PPO learns from a rollout in the same order in each epoch",
        "agents/ppo.py",
        "            for chosen in torch.randperm(len(steps)).split(self.minibatch_size):",
        "            for chosen in torch.arange(len(steps)).split(self.minibatch_size):",
        PPO,
    ),
    Mutant(
        "only the first rollout is stored for the auxiliary task",
        "../recipes/ppo_mcurl.py",
        "            buffer.extend(rollout)\n",
        "            buffer.extend(rollout) if run.completed == 0 else None\n",
        "tests/recipes/test_ppo_order.py",
    ),
    Mutant(
        "environments side by side share their seeds",
        "training/rollouts.py",
        'derive_seed(seed, "environment", number)',
        'derive_seed(seed, "environment", 0)',
        ROLLOUTS,
    ),
    Mutant(
        "after a failure the other environments go on in mid-episode",
        "training/rollouts.py",
        "                stream.leave()\n",
        "                pass\n",
        ROLLOUTS,
    ),
    Mutant(
        "environments are not brought back to where they were",
        "training/rollouts.py",
        "            stream.load_state_dict(saved)\n",
        "            pass\n",
        ROLLOUTS,
    ),
    Mutant(
        "a probe is scored on episodes that it was fitted to",
        "training/probe.py",
        "errors = (y[tested] - x[tested] @ weights).square().mean(0)",
        "errors = (y - x @ weights).square().mean(0)",
        PROBE,
    ),
    Mutant(
        "a frozen encoder learns",
        "modules/encoder_files.py",
        "        encoder.requires_grad_(False)\n",
        "        pass\n",
        "tests/modules/test_encoder_files.py",
    ),
    Mutant(
        "Rainbow's target network does not start from the pre-trained encoder",
        "../recipes/rainbow_mcurl.py",
        "    start_encoder(policy.network.encoder, cfg.encoder, objective=cfg.objective.name)\n",
        "",
        "tests/recipes/test_pretrain.py::test_all_copies_of_the_encoder_start_from_it",
    ),
    Mutant(
        "the actions of V-D4RL are those before an observation",
        "replay/datasets.py",
        'episode["action"].float().roll(-1, 0)',
        'episode["action"].float()',
        "tests/replay/test_datasets.py",
    ),
    Mutant(
        "an interval leaves 5 % out on each side",
        "reports/statistics.py",
        "tail = (1 - LEVEL) / 2",
        "tail = 1 - LEVEL",
        f"{STATISTICS}::test_intervals_are_percentiles_of_all_resamples",
    ),
    Mutant(
        "Student's interval is one-sided",
        "reports/statistics.py",
        "0.5 + LEVEL / 2",
        "LEVEL",
        f"{STATISTICS}::test_the_mean_has_students_interval",
    ),
    Mutant(
        "runs that are paired are drawn apart",
        "reports/statistics.py",
        "intervals = _intervals([pairs], improvement, repetitions, seed, cells=cells)",
        "intervals = _intervals([x, y], probability_of_improvement, repetitions, seed, cells=cells)",
        f"{STATISTICS}::test_paired_seeds_are_drawn_together",
    ),
    Mutant(
        "padding is a negative",
        "objectives/functional.py",
        "logits = logits.masked_fill(~(valid.unsqueeze(-2) | own), -torch.inf)",
        "pass",
        "tests/objectives/test_padding.py",
    ),
    Mutant(
        "padding shows what was hidden",
        "objectives/masked_contrastive.py",
        "blank = ~valid if zeroed is None else zeroed | ~valid",
        "query, blank = self._require_views(tensordict)[0], zeroed",
        "tests/objectives/test_padding.py",
    ),
    Mutant(
        "padding is context",
        "objectives/masked_contrastive.py",
        "if valid is not None and self._context_takes_valid else {}",
        "if valid is None else {}",
        "tests/objectives/test_padding.py",
    ),
    Mutant(
        "padding counts in the loss of values",
        "objectives/noisy_targets.py",
        '"loss_value": reduce_masked(losses, valid, self.reduction),',
        '"loss_value": reduce_masked(losses, None, self.reduction),',
        "tests/contract/test_losses.py::TestPadding",
    ),
    Mutant(
        "SAC drops its importance weights",
        "objectives/latent_sac.py",
        "losses = losses * weight.reshape(losses.shape)",
        "pass",
        "tests/objectives/test_latent_sac.py::TestWeightsAndMasks",
    ),
    Mutant(
        "the slow copy follows too fast",
        "objectives/target_loss.py",
        "target.get(key).lerp_(parameter, tau)",
        "target.get(key).lerp_(parameter, 1 - tau)",
        "tests/contract/test_losses.py::TestTargets",
    ),
    Mutant(
        "a reset leaves the slow copies as they were",
        "objectives/target_loss.py",
        "target.data.update_(self._online_params(name).data)",
        "pass",
        "tests/contract/test_losses.py::TestParameters",
    ),
    Mutant(
        "a shared encoder is optimised twice",
        "objectives/parameters.py",
        "list(dict.fromkeys(value for values in lists for value in values if value.requires_grad))",
        "[value for values in lists for value in values if value.requires_grad]",
        "tests/objectives/test_parameters.py",
    ),
    Mutant(
        "a step is evaluated before it is saved",
        "training/run.py",
        "if self._saved_step != step:",
        "if False:",
        FAULTS_STOPPING,
    ),
    Mutant(
        "an evaluation does not stop",
        "training/run.py",
        "stop=lambda: self.stop.requested,",
        "stop=None,",
        FAULTS_STOPPING,
    ),
    Mutant(
        "a resumed run forgets the evaluation that was stopped",
        "training/run.py",
        'restored.info.get("evaluation_due", False)',
        "False",
        FAULTS_STOPPING,
    ),
    Mutant(
        "rows that no checkpoint needs stay",
        "training/checkpoints.py",
        "            remove_unnamed(self.replay_directory)",
        "            pass",
        FAULTS_DISK,
    ),
    Mutant(
        "changed tables are not noticed",
        "training/run.py",
        "if now.get(name) != fingerprint",
        "if False",
        FAULTS_DISK,
    ),
    Mutant(
        "the room of a replay on disk is not reserved",
        "../recipes/building.py",
        "os.posix_fallocate(file.fileno(), 0, size)",
        "pass",
        FAULTS_DISK,
    ),
    Mutant(
        "the rows of a killed run stand in the way",
        "../recipes/building.py",
        "shutil.rmtree(folder, ignore_errors=True)",
        "pass",
        FAULTS_DISK,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_test_notices(mutant: Mutant, tmp_path: Path) -> None:
    for folder in ("mcurl_torchrl", "recipes", "tests"):
        shutil.copytree(REPO / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    file = tmp_path / "mcurl_torchrl" / mutant.file
    source = file.read_text()
    assert source.count(mutant.old) == 1, f"{mutant.old!r} must stand once in {mutant.file}"
    file.write_text(source.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.test.split()]
    run = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 1, f"{mutant.test} stays green (exit {run.returncode}):\n{run.stdout[-2000:]}"
    assert " failed" in run.stdout.splitlines()[-1], run.stdout[-2000:]
