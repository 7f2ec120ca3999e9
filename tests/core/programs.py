"""Reading compiled programs: what runs inside their loops, and whether a cache is copied there."""

import math
import re


def computations(text):
    """The computations of an HLO module by name, as lists of lines."""
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            name = head.group(1)
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def inside_loops(parts):
    """Names of computations that run inside a while loop, called ones included."""
    def called(lines):
        return {name for line in lines for name in re.findall(
            r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", line)} | {
            name for line in lines for group in re.findall(r"branch_computations=\{([^}]*)\}", line)
            for name in re.findall(r"[\w.\-]+", group)}

    todo = {name for lines in parts.values() for line in lines for name in re.findall(r"body=%?([\w.\-]+)", line)}
    seen = set()
    while todo:
        name = todo.pop()
        if name in parts and name not in seen:
            seen.add(name)
            todo |= called(parts[name])
    return seen


def lines_in_loops(text):
    """The instructions of an HLO module that run inside a while loop."""
    parts = computations(text)
    return [line for name in inside_loops(parts) for line in parts[name]]


def assert_in_place(text, caches, least=20):
    """No loop of the program copies, transposes or selects a whole float32 array of the shapes `caches`; each must be
    in sight at least `least` times."""
    lines = lines_in_loops(text)
    for shape in caches:
        cache = re.escape(f"f32[{','.join(map(str, shape))}]")
        assert sum(bool(re.search(cache, line)) for line in lines) >= least, f"no cache {shape} in sight"
        found = [line.strip()[:160] for line in lines if re.search(rf"= {cache}\S* select\(", line)]
        found += [
            line.strip()[:160] for line in lines
            for other in re.findall(r"= \(?\w+\[([\d,]+)\]\S* (?:copy|copy-start|transpose)\(", line)
            if math.prod(map(int, other.split(","))) >= math.prod(shape)]
        assert not found, found
