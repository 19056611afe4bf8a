"""What is checkpointed, and where: llm-foundry's forms row by row, and what is added to them."""

import json
from collections.abc import Callable

import pytest

from ftrecipes.config.targets import PLACES, blocks_at, read_target

ALL_TEN = tuple(range(10))


def refusal(action: Callable[[], object]) -> str:
    """Why something is refused, without the hint to all places."""
    with pytest.raises(ValueError, match=r".*") as caught:
        action()
    return str(caught.value).replace(PLACES, "PLACES")


# --- llm-foundry's table: what the whole target says
@pytest.mark.parametrize(
    ("value", "target"),
    [
        ([], {"block": "all"}),  # the whole block, in all blocks
        ("[]", {"block": "all"}),
        ({}, {}),  # nothing is checkpointed
        ("{}", {}),
        ("grouped_query_attention", {"grouped_query_attention": "all"}),
        (["x"], {"x": "all"}),
        (["x", "y"], {"x": "all", "y": "all"}),  # documented there, and always raised
        ({"mptblock": 3}, {"mptblock": 3}),
        ({"m": [1, 3]}, {"m": [1, 3]}),
        ({"m": "first-2, last-2"}, {"m": "first-2, last-2"}),
        ({"m": ["first-2", 5, "last-1"]}, {"m": ["first-2", 5, "last-1"]}),
        # Two classes on one block raised there; one inside the other is found in the model here.
        ({"a": "first-2", "b": "last-9"}, {"a": "first-2", "b": "last-9"}),
        (
            {"mptblock": [1], "grouped_query_attention": "first-1, last-1"},
            {"mptblock": [1], "grouped_query_attention": "first-1, last-1"},
        ),
    ],
)
def test_targets_of_llm_foundry(value, target):
    assert read_target(value) == target


# --- the same table: what a place says of 10 blocks
@pytest.mark.parametrize(
    ("place", "blocks"),
    [
        (3, (0, 1, 2)),
        (0, ()),
        (99, ALL_TEN),
        ([1, 3], (1, 3)),
        ("first-3", (0, 1, 2)),
        ("first-99", ALL_TEN),
        ("last-3", (7, 8, 9)),
        ("last-99", ALL_TEN),
        ("middle-3", (3, 4, 5)),
        ("middle-4", (2, 3, 4, 5)),
        ("middle-99", ALL_TEN),
        ("range-2-5", (2, 3, 4)),
        ("first-2, last-2", (0, 1, 8, 9)),
        ("first-2,last-2", (0, 1, 8, 9)),
        (["first-2", 5, "last-1"], (0, 1, 5, 9)),
        ([], ()),
    ],
)
def test_places_of_llm_foundry(place, blocks):
    assert read_target({"m": place}) == {"m": place}
    assert blocks_at(place, 10) == blocks


@pytest.mark.parametrize("place", ["5", None, 1.5, "first-x"])
def test_what_llm_foundry_refuses_as_well(place):
    reason = refusal(lambda: blocks_at(place, 10))
    assert refusal(lambda: read_target({"m": place})) == f"m: {reason}"


# --- the same table: what passed there in silence
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ([10], "there is no block 10: the model has 10, from 0 to 9"),
        ([0, 99], "there is no block 99"),
        ([-11], "there is no block -11"),
        ("first-2, 10", "there is no block 10"),
        ("range-5-99", "range-5-99 goes past the last block: the model has 10, from 0 to 9; did "),
        ("range-5-11", "did you mean range-5-10?"),
        ("range-10-11", "range-10-11 goes past the last block: the model has 10, from 0 to 9"),
    ],
)
def test_blocks_that_are_not_there(place, reason):
    read_target({"m": place})  # only the model can tell
    assert reason in refusal(lambda: blocks_at(place, 10))


# --- ours
@pytest.mark.parametrize(
    ("place", "blocks"),
    [
        ("all", ALL_TEN),
        ("ALL", ALL_TEN),
        (["all"], ALL_TEN),
        ([-1], (9,)),
        ([-10, 9], (0, 9)),
        ("0, -1", (0, 9)),
        ("first-1, -1", (0, 9)),
        (["first-2, last - 1", 4], (0, 1, 4, 9)),
        (["5"], (5,)),
        ("first-0", ()),
        ("range-0-10", ALL_TEN),
        ("range-9-10", (9,)),
        ("first-9, last-9", ALL_TEN),
        ([3, 3, "3", "range-3-4", -7], (3,)),
        ("  Last-2 ,first - 1 ", (0, 8, 9)),
    ],
)
def test_places_that_are_new(place, blocks):
    assert read_target({"m": place}) == {"m": place}
    assert blocks_at(place, 10) == blocks


@pytest.mark.parametrize(
    ("num_blocks", "place", "blocks"),
    [
        (3, "middle-1", (1,)),
        (3, "middle-2", (0, 1)),
        (4, "middle-2", (0, 1)),
        (4, "middle-3", (0, 1, 2)),
        (5, "middle-3", (1, 2, 3)),
        (1, "middle-9", (0,)),
        (1, [-1], (0,)),
        (2, "first-1, last-1", (0, 1)),
    ],
)
def test_small_models(num_blocks, place, blocks):
    assert blocks_at(place, num_blocks) == blocks


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("attention", {"attention": "all"}),
        (" attention , mlp ", {"attention": "all", "mlp": "all"}),
        ("[attention, mlp]", {"attention": "all", "mlp": "all"}),
        ('["attention", "mlp"]', {"attention": "all", "mlp": "all"}),
        ("['attention', 'mlp']", {"attention": "all", "mlp": "all"}),
        ('{"attention": "first-2, last-1", "mlp": [1]}', None),
        (' {"mlp": 2} ', {"mlp": 2}),
        ("model.layers.*.self_attn", {"model.layers.*.self_attn": "all"}),
        ("model.layers.[0,2].mlp,mlp", {"model.layers.[0,2].mlp": "all", "mlp": "all"}),
        ("[model.layers.[!0].mlp, h.?.mlp]", {"model.layers.[!0].mlp": "all", "h.?.mlp": "all"}),
        ("[lm]*.mlp.[ab]", {"[lm]*.mlp.[ab]": "all"}),
        ("transformers.models.llama.modeling_llama.LlamaMLP", None),
    ],
)
def test_targets_as_text(text, target):
    if target is None:
        target = json.loads(text) if text.startswith("{") else {text: "all"}
    assert read_target(text) == target


def test_tuples_become_lists():
    assert read_target(("attention", "mlp")) == {"attention": "all", "mlp": "all"}
    assert read_target({"mlp": (1, 2)}) == {"mlp": [1, 2]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (5, 'say of what: {"block": 5}'),
        ("5", '5 is a place: say of what, {"block": [5]}'),
        ([1, 3], '1 is a place: say of what, {"block": [1]}'),
        ("first-2", 'first-2 is a place: say of what, {"block": "first-2"}'),
        ("all", "write block for all blocks as a whole"),
        (True, "true is no name"),
        ("True", ""),  # a flag without a value; the parser says so
        ("False", "False is no name"),
        ("[none]", "none is no name"),
        (None, "null is no name"),
        (1.5, "1.5 is no name"),
        ("", "a name is empty"),
        ("attention,", "a name is empty"),
        ([""], "a name is empty"),
        ({" ": 1}, "a name is empty"),
        (["a,b"], "a,b: write each name as an entry of its own"),
        ("a b", "a b is no name of a class or a module, and no pattern"),
        ("[attention", "[attention is no name"),
        ([["attention"]], '["attention"] is no name'),
        ([{"attention": 1}], '{"attention": 1} is no name'),
        ({5: 1}, '5 is a place: say of what, {"block": [5]}'),
        ("attention,attention", "attention is given twice: keep one"),
        ({"mlp": 1, " mlp": 2}, "mlp is given twice: keep one"),
        ('{"mlp": 1, "mlp": 2}', "mlp is given twice: keep one"),
        ("{attention: first-2}", """in single quotes: '{"attention": "first-2", "mlp": [1]}'"""),
        ("{" * 9999, "write JSON in single quotes"),
        ("attention:first-2", """write '{"attention": "first-2"}'"""),
        ("attention=2", """write '{"attention": 2}'"""),
        ("block=[1]", """write '{"block": [1]}'"""),
        ("block: [first-2, 3]", """write '{"block": ["first-2", "3"]}'"""),
        ("block=-1", """write '{"block": [-1]}'"""),
    ],
)
def test_what_is_no_target(value, reason):
    assert reason in refusal(lambda: read_target(value))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("5", 'm: "5" could be a number or a count: [5] is one block, first-5 is the first 5'),
        ("-1", "[-1] is one block"),
        (-1, "[-1] counts from the last one"),
        (None, "null is no place: PLACES"),
        (True, "true is no place: PLACES"),
        (1.0, "1.0 is no place: PLACES"),
        ({"a": 1}, '{"a": 1} is no place: PLACES'),
        ([True], "true is no block: PLACES"),
        ([1.0], "1.0 is no block: PLACES"),
        ([None], "null is no block: PLACES"),
        ([[1]], "[1] is no block: PLACES"),
        ("", "a place is empty: PLACES"),
        ("first-2,", "a place is empty: PLACES"),
        (["first-1", ""], "a place is empty: PLACES"),
        ("first-x", "first-x is no place: write for example first-2"),
        ("last", "last is no place: write for example last-2"),
        ("last--1", "last--1 is no place: write for example last-2"),
        ("frist-3", "frist-3 is no place: did you mean first-3?"),
        ("mid-4", "mid-4 is no place: did you mean middle-4?"),
        ("first3", "first3 is no place: did you mean first-2?"),
        ("first-2 last-1", "write for example first-2"),
        ("range-3", "range-3 has no end: range-3-4 is block 3 alone"),
        ("range-5-2", "range-5-2 has no block: did you mean range-2-5?"),
        ("range-3-3", "range-3-3 has no block: did you mean range-3-4?"),
        ("range-1-2-3", "write for example range-0-2"),
        ("1 2", "1 2 is no place: PLACES"),
        ("every-2", "every-2 is no place: PLACES"),
        (f"first-{'9' * 10000}", "write for example first-2"),
    ],
)
def test_what_is_no_place(place, reason):
    assert reason in refusal(lambda: read_target({"m": place}))
    assert refusal(lambda: blocks_at(place, 10)) in refusal(lambda: read_target({"m": place}))
