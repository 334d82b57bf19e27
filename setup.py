"""Puts the examples into the wheel: `remuda examples` shows them. Everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """Copies `examples/*.py` to `remuda/_examples` in the build folder."""

    def run(self) -> None:
        """Build the package, then add the examples."""
        super().run()
        if self.editable_mode:  # a checkout has them beside the package
            return
        target = Path(self.build_lib, "remuda", "_examples")
        target.mkdir(parents=True, exist_ok=True)
        for example in sorted(Path("examples").glob("*.py")):
            shutil.copy(example, target)


setup(cmdclass={"build_py": BuildWithExamples})
