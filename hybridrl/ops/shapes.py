"""Shape checks: broadcasting would turn ``[1, B]`` against ``[B]`` into ``[B, B]`` without a word."""

from torch import Tensor


def check_one_shape(expected: str, **tensors: Tensor) -> None:
    """Refuse tensors that differ in shape.

    Args:
        expected: the shape in words, such as ``"[T, N]"``.
        tensors: by the names that the caller knows them by.

    Raises:
        ValueError: the shapes differ.
    """
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        listed = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes differ: {listed}; expected one shape {expected} for all")
