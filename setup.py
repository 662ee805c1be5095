"""Installs `legroom.pth` next to the package (see legroom.startup). Everything else is in pyproject.toml."""

import zlib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

zlib.Z_DEFAULT_COMPRESSION = zlib.Z_BEST_COMPRESSION  # the level of the wheel, which has no option for it

NAME = "legroom.pth"
LINE = "import os; os.environ.get('LEGROOM') and __import__('legroom.startup').startup.begin()\n"


class BuildWithStartup(build_py):
    def run(self) -> None:
        super().run()
        # An editable install does not copy the package, so the file goes directly to site-packages.
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        Path(folder, NAME).write_text(LINE)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, str(Path(self.build_lib, NAME))]


setup(cmdclass={"build_py": BuildWithStartup})
