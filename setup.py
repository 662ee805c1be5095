"""Everything is in pyproject.toml but this: one file that belongs beside the package, not in it (see legroom.startup)."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LINE = "import os; os.environ.get('LEGROOM') and __import__('legroom.startup').startup.begin()\n"


class BuildWithStartup(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, "legroom.pth").write_text(LINE)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, str(Path(self.build_lib, "legroom.pth"))]


setup(cmdclass={"build_py": BuildWithStartup})
