import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "tests/gpu" in str(item.path):
                item.add_marker(
                    pytest.mark.skip(reason="needs a real GPU, and `pytest tests/gpu`: other tests hide it")
                )
