"""Run the ```python blocks of a Markdown file, in order and in one namespace, as a reader would."""

import pathlib
import re
import sys


def main(path: pathlib.Path) -> None:
    """Execute every block; an exception names the block and its line in the file."""
    text = path.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    if not blocks:
        sys.exit(f"{path.name} has no python block")
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        print(f"{path.name}, line {line + 1}", flush=True)
        exec(compile("\n" * line + block[1], str(path), "exec"), namespace)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
