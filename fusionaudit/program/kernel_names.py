"""Short labels for kernels: what is the same in all C++ kernels of torch goes, what tells them apart stays.

``vectorized_elementwise_kernel<AbsFunctor<float>>`` for ``void at::native::vectorized_elementwise_kernel<(int)4,
at::native::AbsFunctor<float>, std::array<char *, (unsigned long)2>>(int, T2, T3)``. The whole name stays one click
away; names that are no C++ (Triton, nvjet, cudnn) pass unchanged.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

_Step = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_STEPS: tuple[_Step, ...] = tuple(
    (re.compile(pattern), with_)
    for pattern, with_ in (
        # nsys writes casts and [lambda() (instance 1)], CUPTI writes {lambda()#1}
        (r"\((?:unsigned )?(?:int|long|bool|char|short)(?: long)?\)(?=-?\d)", ""),
        (r"::\[lambda\([^\[\]]*\)(?: \(instance \d+\))?\]", ""),
        (r"::\{lambda\([^{}]*\)#\d+\}", ""),
        (r"::operator ?\(\) ?\([^()]*\)(?: const)?", ""),
        (r"(?<=\w)\(at::TensorIterator(?:Base)? ?&[^()]*\)|(?<=>)\(at::TensorIterator(?:Base)? ?&[^()]*\)", ""),
        (r"\bvoid (?=[\w<(:])", ""),
        (r"\(anonymous namespace\)::|<unnamed>::|\bat::(?:native|cuda|detail)::|\bat::|\bc10::", ""),
        (r"\b(?:binary_internal|memory|detail)::", ""),
        (r"(?:, )?\bstd::array<char ?\*, \d+(?:ul)?>", ""),
        (r"(?:, )?\bTrivialOffsetCalculator<[^<>]*>", ""),
        (r"\bTensorList(?:ScalarList)?Metadata<[^<>]*>(?:, )?", ""),
        (r"(?<=[<,])\s*(?:-?\d+[uUlL]*|true|false)(?=\s*[,>])", ""),
        (r"\bunsigned int\b", "uint"),
        (r"(?:(?<=<)|(?<=, ))(\w+)(?:,\s*\1)+(?=\s*[,>])", r"\1"),
        (r"(?:\s*,)+(?=\s*>)|(?<=<)(?:\s*,)+\s*", ""),
        (r"(?:,\s*){2,}", ", "),
        (r"<\s*>", ""),
    )
)  # fmt: skip


@functools.lru_cache(maxsize=65_536)
def kernel_label(name: str) -> str:
    """The label of a kernel's name; the name itself where nothing would be left."""
    if "::" not in name and not name.startswith("void "):
        return name
    text = _without_parameters(name)
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text.strip() or name


def short_label(name: str, width: int = 80) -> str:
    """The label in at most ``width`` characters for a sentence: cut where a word of it ends, with an ellipsis."""
    text = kernel_label(name)
    if len(text) <= width:
        return text
    # Names of Triton kernels are one word: their parts end at underscores.
    for end in (r"\w(?=\W)", r"[a-z0-9](?=_)"):
        ends = [m.end() for m in re.finditer(end, text[: width - 2])]
        if ends and ends[-1] * 2 > width:
            return f"{text[: ends[-1]]}..."
    return f"{text[: width - 3]}..."


def _without_parameters(text: str) -> str:
    """Without the parameter list at the end (its parentheses may be nested)."""
    if not text.endswith(")"):
        return text
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return text[:at]
    return text
