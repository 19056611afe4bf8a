"""Which bytes of a text each token stands for, from the vocabulary alone: no offsets, no spans."""

from itertools import accumulate


def expected_labels(tokenizer, pieces: list[tuple[str, bool]]) -> list[int]:
    """Labels of a text given in pieces, each trained or not.

    A token is trained when it shares bytes with a trained piece; one that begins before the piece
    must share more than white space.
    """
    text = "".join(piece for piece, _ in pieces)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    ranges = byte_ranges(tokenizer, ids)
    data = text.encode()
    assert ranges[-1][1] == len(data)
    labels = [-100] * len(ids)
    ends = list(accumulate(len(piece.encode()) for piece, _ in pieces))
    for (piece, trained), end in zip(pieces, ends, strict=True):
        start = end - len(piece.encode())
        for index, (first, last) in enumerate(ranges):
            shared = data[max(first, start) : min(last, end)]
            if trained and shared and (first >= start or shared.strip()):
                labels[index] = ids[index]
    return labels


def byte_ranges(tokenizer, ids: list[int]) -> list[tuple[int, int]]:
    """Start and end byte of each token; the tokens cover the text without a gap."""
    ends = list(accumulate(len(token_bytes(tokenizer, token)) for token in ids))
    return list(zip([0, *ends], ends, strict=False))


def token_bytes(tokenizer, token: int) -> bytes:
    """The bytes of one token of the tiny tokenizers."""
    word = tokenizer.convert_ids_to_tokens(token)
    if word in tokenizer.all_special_tokens:
        return word.encode()
    if word.startswith("<0x") and len(word) == 6:
        return bytes([int(word[3:5], 16)])
    if "\u2581" in tokenizer.backend_tokenizer.to_str():
        return word.replace("\u2581", " ").encode()
    return bytes(BYTE_OF[char] for char in word)


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (GPT-2): bytes that print badly move up to 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    return table | {chr(256 + place): byte for place, byte in enumerate(moved)}


BYTE_OF = _byte_alphabet()
