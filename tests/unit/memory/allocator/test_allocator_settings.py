"""Parsing of `PYTORCH_CUDA_ALLOC_CONF`, as torch does it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from legroom.errors import UsageError
from legroom.memory.allocator.settings import ENVIRONMENT_NAMES, AllocatorSettings, ties_of
from legroom.units import MiB


class TestValues:
    @pytest.mark.parametrize(
        ("text", "settings"),
        [
            ("", AllocatorSettings()),
            ("max_split_size_mb:64", AllocatorSettings(max_split_size=64 * MiB)),
            ("max_non_split_rounding_mb:30", AllocatorSettings(max_non_split_rounding=30 * MiB)),
            ("garbage_collection_threshold:0.8", AllocatorSettings(garbage_collection_threshold=0.8)),
            ("expandable_segments:True", AllocatorSettings(expandable_segments=True)),
            ("expandable_segments:False", AllocatorSettings()),
            ("per_process_memory_fraction:0.25", AllocatorSettings(per_process_memory_fraction=0.25)),
            ("backend:cudaMallocAsync", AllocatorSettings(backend="cudaMallocAsync")),
            (
                " expandable_segments : True ,\tmax_split_size_mb : 64 , ",
                AllocatorSettings(expandable_segments=True, max_split_size=64 * MiB),
            ),
            ("max_split_size_mb:64MB", AllocatorSettings(max_split_size=64 * MiB)),
            ("pinned_use_background_threads:True,release_lock_on_cudamalloc:True", AllocatorSettings()),
        ],
    )
    def test_settings_are_parsed(self, text: str, settings: AllocatorSettings) -> None:
        assert AllocatorSettings.parse(text) == settings

    def test_the_size_of_large_segments_changes_the_related_thresholds(self) -> None:
        settings = AllocatorSettings.parse("large_segment_size_mb:64")

        assert (settings.large_segment_size, settings.max_non_split_rounding) == (64 * MiB, 64 * MiB)

    def test_one_number_of_divisions_applies_to_all_sizes(self) -> None:
        assert AllocatorSettings.parse("roundup_power2_divisions:8").roundup_power2_divisions == (8,) * 16

    def test_a_list_of_divisions_applies_by_interval(self) -> None:
        settings = AllocatorSettings.parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")

        assert settings.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5

    def test_intervals_that_a_list_omits_are_unchanged(self) -> None:
        settings = AllocatorSettings.parse("roundup_power2_divisions:[4:8,64:2]")

        assert settings.roundup_power2_divisions == (8, 8, 8, 0, 0, 0, 2) + (0,) * 9


class TestInvalidValues:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("max_split_size_mb:19", "`max_split_size_mb:19` is too small. The minimum is 20."),
            ("max_split_size_mb:many", "`max_split_size_mb`: `many` is not an integer."),
            ("max_split_size_mb:-1", "`max_split_size_mb`: `-1` is not an integer."),
            ("max_split_size_mb", "`max_split_size_mb` has no value. Use `max_split_size_mb:VALUE`."),
            ("max_split_size_mb:", "`max_split_size_mb` has no value. Use `max_split_size_mb:VALUE`."),
            ("max_split_size_mb:32,large_segment_size_mb:64", "The minimum is 64."),
            (
                "large_segment_size_mb:10",
                "`large_segment_size_mb:10` is too small. The value must be greater than 10.",
            ),
            (
                "expandable_segments:true",
                "`expandable_segments:true` is not a boolean. Use `True` or `False`.",
            ),
            (
                "garbage_collection_threshold:1.0",
                "`garbage_collection_threshold:1.0` is out of range. Use a number greater than 0 and less than 1.",
            ),
            ("per_process_memory_fraction:2", "out of range. Use a number from 0 to 1."),
            ("roundup_power2_divisions:3", "`roundup_power2_divisions`: `3` is not a power of two."),
            ("roundup_power2_divisions:[100:2]", "`roundup_power2_divisions`: `100` is not a power of two."),
            ("roundup_power2_divisions:[64]", "`64` is not a valid entry. Examples: `256:4`, `>:8`."),
            ("roundup_power2_divisions:[64:2", "`roundup_power2_divisions`: the list has no closing `]`."),
            ("backend:mine", "`backend:mine` is unknown. Use `native` or `cudaMallocAsync`."),
            ("expandable_segment:True", "`expandable_segment` is not a CUDA allocator option."),
            ("expandable_segments:True:max_split_size_mb", "Separate the options with commas"),
        ],
    )
    def test_an_invalid_setting_is_rejected(self, text: str, message: str) -> None:
        with pytest.raises(UsageError) as error:
            AllocatorSettings.parse(text)

        assert message in str(error.value)


class TestEnvironment:
    def test_without_the_variable_the_defaults_apply(self) -> None:
        assert AllocatorSettings.from_environment({}) == AllocatorSettings()

    @pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
    def test_every_variable_name_is_read(self, name: str) -> None:
        assert AllocatorSettings.from_environment({name: "expandable_segments:True"}).expandable_segments

    def test_the_older_name_has_precedence_even_if_empty(self) -> None:
        settings = AllocatorSettings.from_environment(
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": ""}
        )

        assert not settings.expandable_segments

    def test_an_error_names_the_variable(self) -> None:
        with pytest.raises(UsageError, match=r"^PYTORCH_ALLOC_CONF: `max_split_size_mb:1` is too small"):
            AllocatorSettings.from_environment({"PYTORCH_ALLOC_CONF": "max_split_size_mb:1"})

    @pytest.mark.parametrize(
        ("version", "ties"), [("2.11.0+cu130", "address"), ("2.13.0", "age"), ("3.0", "age")]
    )
    def test_the_torch_version_decides_how_ties_are_resolved(self, version: str, ties: str) -> None:
        assert ties_of(version) == AllocatorSettings.from_environment({}, version).ties == ties


class TestChangesWhileRunning:
    def test_changed_settings_keep_the_segment_options(self) -> None:
        before = AllocatorSettings.parse(
            "expandable_segments:True,max_split_size_mb:64,large_segment_size_mb:32"
        )

        after = AllocatorSettings.parse("garbage_collection_threshold:0.5", before)

        assert after == AllocatorSettings(
            expandable_segments=True,
            large_segment_size=32 * MiB,
            max_non_split_rounding=32 * MiB,
            garbage_collection_threshold=0.5,
        )


class TestPlainData:
    def test_settings_are_read_back_from_a_file(self) -> None:
        settings = AllocatorSettings.parse("roundup_power2_divisions:[64:2,>:8],max_split_size_mb:99")

        assert AllocatorSettings.from_dict(settings.as_dict()) == settings

    def test_options_of_a_later_version_are_ignored(self) -> None:
        assert AllocatorSettings.from_dict({"expandable_segments": True, "colour": "red"}).expandable_segments


def _has_segment_size_option() -> bool:
    """Whether torch has the option `large_segment_size_mb`. Releases without this option accept any value."""
    try:
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:10")
    except (RuntimeError, ValueError):
        return True
    return False


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_setAllocatorSettings"),
    reason="this torch has no function that parses them",
)
class TestAgainstTorch:
    @pytest.fixture(autouse=True)
    def _defaults_afterwards(self) -> Iterator[None]:
        yield
        # torch keeps the size of large segments when it parses the next settings.
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,expandable_segments:False")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "max_split_size_mb:64",
            "max_split_size_mb:20",
            "max_split_size_mb:19",
            "max_split_size_mb:64MB",
            "max_split_size_mb:abc",
            "max_split_size_mb:",
            "max_split_size_mb",
            "expandable_segments:true",
            "expandable_segments:True,",
            "expandable_segments:True,,",
            "expandable_segments=True",
            "expandable_segments:True;max_split_size_mb:64",
            "max_split_size_mb:64 expandable_segments:True",
            "garbage_collection_threshold:0",
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:.5",
            "garbage_collection_threshold:0.8x",
            "roundup_power2_divisions:0",
            "roundup_power2_divisions:1",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[]",
            "roundup_power2_divisions:[256:1,512:2,>:8]",
            "roundup_power2_divisions:[256:0,>:8]",
            "roundup_power2_divisions:[256:1,512:2,>:8",
            "roundup_power2_divisions:[100:2]",
            "roundup_power2_divisions:[64:3]",
            "roundup_power2_divisions:[131072:4,>:8]",
            "large_segment_size_mb:10",
            "large_segment_size_mb:11",
            "large_segment_size_mb:64,max_split_size_mb:32",
            "max_non_split_rounding_mb:10",
            "pinned_use_background_threads:True",
        ],
    )
    def test_exactly_the_values_that_torch_rejects_are_rejected(self, text: str) -> None:
        if "large_segment" in text and not _has_segment_size_option():
            pytest.skip("this torch has no option large_segment_size_mb")
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        try:
            torch._C._accelerator_setAllocatorSettings(text)
            torch_accepts = True
        except (RuntimeError, ValueError):
            torch_accepts = False
        try:
            AllocatorSettings.parse(text)
            accepted = True
        except UsageError:
            accepted = False

        assert accepted == torch_accepts

    @pytest.mark.skipif(
        not hasattr(torch._C, "_accelerator_getAllocatorSettings"),
        reason="this torch does not return its settings",
    )
    @pytest.mark.slow
    def test_torch_also_prefers_the_older_name(self) -> None:
        code = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
        environment = {name: f"max_split_size_mb:{64 + n}" for n, name in enumerate(ENVIRONMENT_NAMES)}

        asked = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )

        assert asked.stdout.strip() == environment[ENVIRONMENT_NAMES[0]]
