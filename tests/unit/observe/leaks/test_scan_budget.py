"""Attention takes its share of the time, comes back at once where something may grow, and foresees the turn it will attend."""

from legroom.observe.leaks.scan_budget import UNTIMED, Attention


def attended(attention: Attention, *, turn: float, cost: float, turns: int) -> list[int]:
    """Which of so many turns of `turn` seconds are attended, at `cost` each."""
    now, found = 100.0, []
    for number in range(turns):
        now += turn
        if attention.is_due(now):
            attention.paid(now + cost, cost, again=False)
            found.append(number)
    return found


def test_long_turns_are_all_attended() -> None:
    assert attended(Attention(0.003), turn=0.1, cost=50e-6, turns=20) == list(range(20))


def test_short_turns_are_attended_as_seldom_as_the_share_asks() -> None:
    found = attended(Attention(0.003, free=0), turn=0.002, cost=30e-6, turns=2000)
    assert 0.002 < len(found) * UNTIMED * 30e-6 / (2000 * 0.002) <= 0.003


def test_the_turn_after_a_doubtful_one_is_attended_and_paid_for_later() -> None:
    attention = Attention(0.01, free=0)
    attention.paid(1.001, 0.001, again=True)
    assert attention.is_due(1.002)
    attention.paid(1.003, 0.001, again=False)
    assert not attention.is_due(1.003 + UNTIMED * 0.0019 / 0.01)
    assert attention.is_due(1.003 + UNTIMED * 0.0021 / 0.01)


def test_the_turn_before_an_attended_one_says_so() -> None:
    attention = Attention(0.003, free=0)
    now, foreseen, due = 100.0, [], []
    for _ in range(60):
        foreseen.append(attention.expects)
        now += 0.005
        due.append(attention.is_due(now))
        if due[-1]:
            attention.paid(now + 30e-6, 30e-6, again=False)
    assert 0 < sum(due) < 60
    assert all(expected for expected, happened in zip(foreseen, due, strict=True) if happened)


def test_the_first_turns_are_all_attended_and_not_paid_for() -> None:
    assert attended(Attention(0.003, free=50), turn=0.001, cost=1e-3, turns=50) == list(range(50))
    attention = Attention(0.003, free=2)
    assert attention.is_due(1.0)
    attention.paid(1.0, 0.5, again=False)
    assert attention.is_due(1.1)
