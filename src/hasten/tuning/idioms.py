"""The user's source with a few slow idioms done as the field does them: at once, once, or on less.

In: a file's text, its tree and a line. Out: the text changed, or None. Refuses to guess: what is not written in just one
of these ways stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from hasten.tuning.rewriting import after, around, called, instead, replaced, stretch

CROPS = "RandomCrop CenterCrop"
LOCAL = """
    GaussianBlur GaussianNoise ColorJitter Grayscale RandomGrayscale RandomAdjustSharpness RandomInvert RandomPosterize
    RandomSolarize Normalize ToDtype ConvertImageDtype RandomHorizontalFlip RandomVerticalFlip
"""  # transforms whose every pixel depends on no more than a few others near it, or lies elsewhere in a crop's like
MADE_OF_NUMPY = "from_numpy tensor as_tensor asarray"
CONVERTING = "to float type half bfloat16 long int"
READING = "len set sorted enumerate list tuple dict zip max min range str Counter print"
MUTATING = "append extend insert pop popitem remove clear update setdefault sort reverse add discard"


def in_tensors(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with what is read at `line`, and only summed up, left in tensors: no sync until the sum is told."""
    held_by = list(around(tree, line))  # outermost first
    for node in reversed(held_by):
        if isinstance(node, ast.For) and (hits := _hits(node)) is not None:
            return instead(text, node, hits)
    match held_by[-1:]:
        case [ast.AugAssign(target=ast.Name() | ast.Attribute(), op=ast.Add()) as sum_]:
            reads = [term for term in _terms(sum_.value) if isinstance(term, ast.Call) and called(term) == "item"]
            source = ast.get_source_segment(text, reads[0]) or "" if len(reads) == 1 and not reads[0].args else ""
            if source and "numpy" not in source:
                kept = replaced(text, reads[0], source[: source.rindex(".")] + ".detach()")
                return _not_in_place(kept, sum_)
        case _:
            pass
    return None


def _not_in_place(text: str, sum_: ast.AugAssign) -> str:
    """The text with `total = total + x` for `total += x`: what has kept the sum so far must not see it grow."""
    begin, end = stretch(text, sum_.target)
    name, behind = text[begin:end], text[end:]
    return text[:end] + behind.replace("+=", f"= {name} +", 1)


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """What is added, subtracted, multiplied and divided; nothing that stands within a call, a list or a text."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        yield from _terms(value.left)
        yield from _terms(value.right)
    else:
        yield value


def _hits(loop: ast.For) -> str | None:
    """What counts as `for i in range(len(b)): if a[i].item() == b[i].item(): n += 1` does, in one operator."""
    match loop:
        case ast.For(
            target=ast.Name(id=index),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=length)])]
            ),
            body=[
                ast.If(
                    test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]),
                    body=[ast.AugAssign(target=ast.Name(id=count), op=ast.Add(), value=ast.Constant(value=1))],
                    orelse=[],
                )
            ],
            orelse=[],
        ):
            names = {_indexed(left, index), _indexed(right, index)}
            if None not in names and length in names and len(names) == 2:
                (other,) = names - {length}
                return f"{count} = {count} + ({other}.view_as({length}) == {length}).sum()"
        case _:
            pass
    return None


def _indexed(node: ast.expr, index: str) -> str | None:
    """The name of what `name[index].item()` takes from."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Subscript(value=ast.Name(id=name), slice=ast.Name(id=at)), attr="item"),
            args=[],
        ):
            return name if at == index else None
        case _:
            return None


def copied_at_once(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with numbers that a loop copies one by one into a tensor copied in one assignment."""
    held_by = list(around(tree, line))
    for node in reversed(held_by):
        if isinstance(node, ast.For) and (copy := _copy(node, text)) is not None:
            function = next((n for n in reversed(held_by) if isinstance(n, ast.FunctionDef)), tree)
            into, names, new = copy
            if _imports_torch(tree) and _is_of_torch(function, into) and not _read_elsewhere(function, node, names):
                return instead(text, node, new)
    return None


def _imports_torch(tree: ast.Module) -> bool:
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    return any(name.name == "torch" and name.asname is None for node in imports for name in node.names)


def _is_of_torch(function: ast.AST, name: str) -> bool:
    """Whether a name stands for what one of torch's functions made."""
    values = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    return len(values) == 1 and isinstance(values[0], ast.Call) and ast.unparse(values[0].func).startswith("torch.")


def _read_elsewhere(function: ast.AST, loop: ast.For, names: set[str]) -> bool:
    inner = {id(node) for node in ast.walk(loop)}
    return any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in inner for node in ast.walk(function)
    )


def _copy(loop: ast.For, text: str) -> tuple[str, set[str], str] | None:
    """Into what, by which names, and what does the same in one assignment.

    Of `for i, x in enumerate(xs): rows[n, i] = x`; or with `range(len(xs))` and `xs[i]`.
    """
    element = ""
    match loop:
        case ast.For(
            body=[ast.Assign(targets=[ast.Subscript(value=ast.Name(id=into)) as target], value=value)], orelse=[]
        ):
            pass
        case _:
            return None
    match loop:
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=index), ast.Name(id=element)]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[ast.Name(id=source)], keywords=[]),
        ) if isinstance(value, ast.Name) and value.id == element:
            pass
        case ast.For(
            target=ast.Name(id=index),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=source)])]
            ),
        ) if ast.unparse(value) == f"{source}[{index}]":
            pass
        case _:
            return None
    places = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    *before, last = places
    # With a single index an element may be a row, and a list of rows is no tensor yet.
    if not before or ast.unparse(last) != index or any({index, element} & _names(place) for place in before):
        return None
    slices = [ast.get_source_segment(text, place) or "" for place in before]
    new = f"{into}[{', '.join([*slices, f': len({source})'])}] = torch.as_tensor({source}, dtype={into}.dtype)"
    return into, {index, element}, new


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def cropped_first(text: str, tree: ast.Module, _line: int) -> str | None:
    """The text with each Compose cropping before what would otherwise be done to pixels that are then thrown away."""
    changed = None
    while steps := _late_crop(tree, text):
        changed = text = _rotated(text, steps)
        tree = ast.parse(text)
    return changed


def _late_crop(tree: ast.Module, text: str) -> list[ast.expr]:
    """What may as well come behind a crop, and the crop; a comment among them would lose its place."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.List(elts=steps)]) if called(node) == "Compose":
                crop = first = next((n for n, step in enumerate(steps) if _is_crop(step)), 0)
                while first > 0 and _is_local(steps[first - 1]):
                    first -= 1
                found = steps[first : crop + 1]
                if first < crop and not any("#" in gap for gap in _gaps(text, found)):
                    return found
            case _:
                pass
    return []


def _is_local(step: ast.expr) -> bool:
    if not isinstance(step, ast.Call) or called(step) not in LOCAL.split():
        return False
    # Contrast is against the mean of the whole image.
    contrast = len(step.args) > 1 or any(word.arg in ("contrast", None) for word in step.keywords)
    return called(step) != "ColorJitter" or not contrast


def _is_crop(step: ast.expr) -> bool:
    """Of nothing but a size: padding looks at what was done before."""
    if not isinstance(step, ast.Call) or called(step) not in CROPS.split():
        return False
    return len(step.args) + len(step.keywords) == 1 and all(word.arg == "size" for word in step.keywords)


def _gaps(text: str, steps: list[ast.expr]) -> list[str]:
    return [text[stretch(text, a)[1] : stretch(text, b)[0]] for a, b in pairwise(steps)]


def _rotated(text: str, steps: list[ast.expr]) -> str:
    """The text with the last of these expressions before the others."""
    places = [stretch(text, step) for step in steps]
    parts = [text[begin:end] for begin, end in (places[-1], *places[:-1])]
    inner = "".join(part + gap for part, gap in zip(parts, [*_gaps(text, steps), ""]))
    return text[: places[0][0]] + inner + text[places[-1][1] :]


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


def looked_up_once(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with slices of a sequence, looked up in a table element by element, cut from what was looked up once.

    Both must be names of the module that are bound once and never altered.
    """
    held_by = list(around(tree, line))
    if not held_by or not _imports_torch(tree):
        return None
    for node in ast.walk(held_by[-1]):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "torch.tensor" or len(node.args) != 1:
            continue
        found = None if node.keywords else _lookups(node.args[0], text)
        if found is None:
            continue
        table, sequence, cut, over = found
        bound = [_bound_once(tree, name) for name in (table, sequence)]
        known = f"{sequence}_{table}"
        if None in bound or known in _names(tree):
            return None
        last = max((statement for statement in bound if statement is not None), key=lambda s: s.lineno)
        cuts, lookup = (
            f"torch.stack([{known}[{cut}] {over}])",
            f"{known} = torch.tensor([{table}[x] for x in {sequence}])",
        )
        if last.lineno < node.lineno:  # the lower one first: it may be of several lines
            return after(replaced(text, node, cuts), last, lookup)
        below = after(text, last, lookup)
        return replaced(below, node, cuts) if below is not None else None
    return None


def _lookups(value: ast.expr, text: str) -> tuple[str, str, str, str] | None:
    """Of `[[table[x] for x in sequence[a:b]] for s in starts]`: table, sequence, "a:b", "for s in starts"."""
    match value:
        case ast.ListComp(
            elt=ast.ListComp(
                elt=ast.Subscript(value=ast.Name(id=table), slice=ast.Name(id=looked_up)),
                generators=[
                    ast.comprehension(
                        target=ast.Name(id=element),
                        iter=ast.Subscript(value=ast.Name(id=sequence), slice=ast.Slice(step=None) as cut),
                        ifs=[],
                        is_async=0,
                    )
                ],
            ) as inner,
            generators=[ast.comprehension()],
        ) if looked_up == element:
            over = text[stretch(text, inner)[1] : stretch(text, value)[1] - 1].strip()
            return table, sequence, ast.get_source_segment(text, cut) or "", over
        case _:
            return None


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _bound_once(tree: ast.Module, name: str) -> ast.stmt | None:
    """The module's statement that binds a name, where nothing else binds it or alters what it stands for."""
    bindings = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=bound, ctx=ast.Store() | ast.Del()) | ast.arg(arg=bound) if bound == name:
                if not bindings or node is not getattr(bindings[0], "targets", [None])[0]:
                    return None
            case ast.Subscript(value=ast.Name(id=owner), ctx=ast.Store() | ast.Del()) if owner == name:
                return None
            case ast.Call() if called(node) not in READING.split() and name in map(ast.unparse, _given(node)):
                return None  # who knows what it does to it
            case ast.Attribute(value=ast.Name(id=owner), attr=method) if owner == name and method in MUTATING.split():
                return None
            case _:
                pass
    return bindings[0] if len(bindings) == 1 else None
