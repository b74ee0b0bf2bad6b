"""What torch computes in float64 by name is computed in float32.

In: a file's text and its tree. Out: the text changed, or None. Refuses scripts in which float64 of another's making would remain.
"""

from __future__ import annotations

import ast

from hasten.tuning.rewriting.text import called, stretch

MADE_OF_NUMPY = "from_numpy tensor as_tensor asarray"
CONVERTING = "to float type half bfloat16 long int"


def in_float32(text: str, tree: ast.Module, _line: int) -> str | None:
    """The text with every float64 of torch's turned to float32; not where what NumPy or a loader made would remain."""
    if any(isinstance(node, ast.Name) and node.id == "DataLoader" for node in ast.walk(tree)):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [node.func for node in calls if isinstance(node.func, ast.Attribute)]
    converted = {id(method.value) for method in methods if method.attr in ("double", *CONVERTING.split())}
    for call in calls:
        cast = id(call) in converted or any(word.arg == "dtype" for word in call.keywords)
        if called(call) in MADE_OF_NUMPY.split() and not cast:
            return None
    ends = [(node, "float32") for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_double(node)]
    plain = {id(call.func) for call in calls if not call.args and not call.keywords}
    ends += [(method, "float") for method in methods if method.attr == "double" and id(method) in plain]
    # From the end to the beginning, so that places before stay where they are.
    for end, new, length in sorted(((stretch(text, n)[1], new, len(n.attr)) for n, new in ends), reverse=True):
        text = text[: end - length] + new + text[end:]
    return text if ends else None


def _is_double(node: ast.Attribute) -> bool:
    return ast.unparse(node) in ("torch.float64", "torch.double")
