"""Puts the examples into the wheel, where `remuda examples` finds them, and makes the links of README absolute.

Everything else is in pyproject.toml.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BLOB = "https://github.com/remuda-rl/remuda/blob/main"
RAW = "https://raw.githubusercontent.com/remuda-rl/remuda/main"


class BuildWithExamples(build_py):
    """Copies the examples, games and study files, to `remuda/_examples` in the build folder."""

    def run(self) -> None:
        """Build the package, then add the examples."""
        super().run()
        if self.editable_mode:  # a checkout has them beside the package
            return
        target = Path(self.build_lib, "remuda", "_examples")
        target.mkdir(parents=True, exist_ok=True)
        for kind in ("*.py", "*.yaml"):
            for example in sorted(Path("examples").glob(kind)):
                shutil.copy(example, target)


def readme() -> str:
    """README as a package registry shows it: there is no folder that its links could be relative to."""
    text = Path("README.md").read_text("utf-8")
    text = re.sub(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)", rf"![\1]({RAW}/\2)", text)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", rf"[\1]({BLOB}/\2)", text)


setup(
    cmdclass={"build_py": BuildWithExamples},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
