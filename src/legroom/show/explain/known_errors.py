"""Prints a one-line explanation of an error below its traceback."""

from legroom.log import say


def say_explanation(error: BaseException, *, on_virtual_gpu: bool) -> None:
    # Slow to import, and not needed without an error.
    from legroom.diagnose.explain.explain import explain
    from legroom.show.explain.translation import translate_explanation

    explanation, words = translate_explanation(explain(error))
    if not explanation.code:
        return
    say(f"{explanation.sentence} {words(f'See `legroom explain {explanation.code}`.')}")
    if on_virtual_gpu and explanation.code == "LG712":
        from legroom.observe.dispatch.checks.failed_kernels import is_assert_on_gpu

        if is_assert_on_gpu(error):
            say(
                "On a real GPU, this error is a device-side assert that appears at a later line (LG710). "
                "The virtual GPU stops at the line that caused the error."
            )
