"""Orders as text, and the check that an order is its plan's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ScheduleError
from simulator.issue_order import (
    ALL_SLICES,
    BACKWARD_FRAGMENTS,
    BLOCKS,
    FORWARD_FRAGMENTS,
    IssueOrder,
    Token,
    check_issue_order,
    parse_issue_order,
    parse_token,
    wgrad_chains,
)
from simulator.plan import SlicePlan
from simulator.schedules import fixed_order

PLAN = SlicePlan(row_slices=3, attn_col_slices=2, order="intra", wgrad="eager")


TOKENS = st.builds(
    Token, st.sampled_from(BLOCKS), st.sampled_from((*FORWARD_FRAGMENTS, *BACKWARD_FRAGMENTS)),
    st.sampled_from((ALL_SLICES, *range(16))), st.integers(-1, 15), st.integers(-20, 20),
)  # fmt: skip


@given(TOKENS)
def test_tokens_survive_as_text(token: Token) -> None:
    assert parse_token(str(token)) == token


@pytest.mark.parametrize(
    "text",
    ["", "mlp.fc2", "mlp.fc2:0", "mlp.fc2:0+", "mlp.fc2:0 +0", "moe.fc2:0+0", "mlp.fc2.x:0+0",
     "mlp.fc2:-1+0", "mlp.fc2:0+0 ", "MLP.fc2:0+0", "mlp..fc2:0+0", "mlp.fc2:٣+0"],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match=r"Bad token .* write it as block\.fragment"):
        parse_token(text)


@pytest.mark.parametrize("stride", [0, -1, 1.5, "1"])
def test_a_stride_is_a_positive_number(stride: Any) -> None:
    with pytest.raises(ScheduleError, match="stride must be a whole number"):
        parse_issue_order(["mlp.norm:0+0"], stride)


def forward() -> list[Token]:
    return list(fixed_order(PLAN).forward.tokens)


def test_a_stride_is_no_more_than_the_tokens() -> None:
    with pytest.raises(ScheduleError, match="cannot be more than its 1 tokens"):
        parse_issue_order(["mlp.norm:0+0"], 10**30)


def check(tokens: list[Token], stride: int = 1) -> None:
    check_issue_order(IssueOrder(tokens=tuple(tokens), stride=stride), PLAN, FORWARD_FRAGMENTS)


def test_each_plans_own_order_passes() -> None:
    check(forward())
    check_issue_order(fixed_order(PLAN).backward, PLAN, BACKWARD_FRAGMENTS)


@pytest.mark.parametrize("place", range(0, 34, 5))
def test_a_missing_a_repeated_and_a_strange_token_are_told(place: int) -> None:
    tokens = forward()
    name = str(tokens[place])
    with pytest.raises(ScheduleError, match=name.replace("+", r"\+")):
        check(tokens[:place] + tokens[place + 1 :])
    with pytest.raises(ScheduleError, match="a repeat"):
        check([*tokens, tokens[place]._replace(offset=4)])
    with pytest.raises(ScheduleError, match=f"{tokens[place].block}.{tokens[place].fragment}"):
        check([*tokens[:place], tokens[place]._replace(slice=3), *tokens[place + 1 :]])


def test_an_order_over_two_layers_issues_each_layers_fragments() -> None:
    twice = forward() + [token.shifted(1) for token in forward()]
    check(twice, stride=2)
    with pytest.raises(ScheduleError, match="once per layer"):
        check(forward() + [token.shifted(2) for token in forward()], stride=2)


def test_merged_weight_gradients_stand_once_for_all_slices() -> None:
    plan = SlicePlan(row_slices=3, order="intra", wgrad="eager", merge_wgrad=True)
    backward = fixed_order(plan).backward
    check_issue_order(backward, plan, BACKWARD_FRAGMENTS)
    wgrads = [str(token) for token in backward.tokens if token.fragment.endswith("_wgrad")]
    assert wgrads == [
        "mlp.fc2_wgrad:all+0", "mlp.fc1_wgrad:all+0",
        "attn.proj_wgrad:all+0", "attn.qkv_wgrad:all+0",
    ]  # fmt: skip
    with pytest.raises(ScheduleError):
        check_issue_order(backward, PLAN, BACKWARD_FRAGMENTS)


def test_accumulation_follows_the_issue_order_across_repetitions() -> None:
    """Slice 1 of a layer is issued a repetition before slice 0 of it, whatever their places."""
    order = parse_issue_order(["mlp.fc1_wgrad:0-1", "mlp.fc1_wgrad:1+0"], 1)
    late, early = order.tokens
    assert wgrad_chains(order) == {early: None, late: early}
