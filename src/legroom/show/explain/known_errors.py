"""The meaning of an error in one line, below its traceback."""

from legroom.log import say


def say_explanation(error: BaseException, *, on_virtual_gpu: bool) -> None:
    """Print the meaning of a known error below its traceback."""
    from legroom.diagnose.explain.explain import explain  # slow to import, and not needed without an error

    explanation = explain(error)
    if not explanation.code:
        return
    say(f"{explanation.sentence} See `legroom explain {explanation.code}`.")
    if on_virtual_gpu and explanation.code == "LG712":
        say(
            "On a real GPU, this error is a device-side assert that appears at a later line (LG710). "
            "The virtual GPU stops at the line that caused the error."
        )
