"""What the modules of a decoder block are for, told by how transformers ends their class names.

Attention is what mixes positions, state space mixers, linear attention and short convolutions
included; an mlp is what follows it, a mixture of experts as a whole, or both halves where it has
no module of its own (BERT). What a block computes with bare linear layers (OPT) has no role.
"""

import re
from collections.abc import Iterator

from ftrecipes.parallel.parts import Part

ROLES = ("block", "attention", "mlp", "norm")
_ENDINGS = {
    "attention": r"Attention\d*|MLA|Mixer|MambaLayer|DeltaNet|ShortConv|RecurrentBlock|xLSTMLayer",
    "mlp": r"(MLP|Mlp|M[oO][eE]|FFN|FeedForward)(Block|Layer)?|Experts|Intermediate|Output",
    # A DbrxNormAttentionNorm is more than a norm; a BatchNorm1d counts how often it is computed.
    "norm": r"(?<!NormAttention)Norm(Gated|1P)?",
}
_ROLE = re.compile("|".join(f".*(?P<{role}>{ending})" for role, ending in _ENDINGS.items()))


def in_role(block: Part, role: str) -> list[Part]:
    """The modules of a role in a block, or the block itself where it has the role.

    Attention and mlp are the outermost of either. Norms are all but those in another norm; there
    are some inside of attention (of queries and keys) and of mixers too.
    """
    return [part for found, part in _sublayers(block, only_norms=False) if found == role]


def _sublayers(part: Part, *, only_norms: bool) -> Iterator[tuple[str | None, Part]]:
    role = _role_of(part)
    if role == "norm" or not only_norms:
        yield role, part
    if role != "norm":
        for child in part.children():
            yield from _sublayers(child, only_norms=only_norms or role is not None)


def _role_of(part: Part) -> str | None:
    """That of the nearest class whose name tells."""
    if not part.computes:
        return None
    found = (_ROLE.fullmatch(cls.__name__) for cls in part.classes)
    return next((match.lastgroup for match in found if match), None)
