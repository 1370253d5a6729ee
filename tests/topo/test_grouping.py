from topoplan.topo.grouping import group_by_key


def test_values_and_keys_stay_in_order() -> None:
    groups = group_by_key([("b", 2), ("a", 1), ("b", 1)])
    assert list(groups.items()) == [("b", [2, 1]), ("a", [1])]


def test_other_keys_have_no_values() -> None:
    assert group_by_key([("a", 1)])["b"] == []
