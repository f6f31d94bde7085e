"""What happens to sampled frames: stack, crop, mask."""

from mcurl_torchrl.transforms.stack_frames import StackFrames

__all__ = ["StackFrames"]
