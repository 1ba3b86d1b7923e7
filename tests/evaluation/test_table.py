"""Tables as they are printed: whole figures at any width."""

import io

from rich.console import Console

from rw.evaluation.table import Table, print_one

FIGURES = tuple(f"{number}.2345e-06" for number in range(1, 9))
TABLE = Table("By phase", ("phase", *(f"column {number}" for number in range(1, 9))), (("final evaluation", *FIGURES),))


def printed(width, table=TABLE):
    text = io.StringIO()
    print_one(table, Console(file=text, width=width, soft_wrap=True))
    return text.getvalue()


def test_columns_without_room_follow_in_a_table_below_with_the_first_one_again():
    assert printed(140).count("By phase") == printed(140).count("final evaluation") == 1
    narrow = printed(80)
    assert narrow.count("By phase") == narrow.count("final evaluation") == 2 and narrow.count("(more columns)") == 1
    assert all(narrow.count(figure) == 1 for figure in FIGURES)
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_table_is_split_exactly_where_it_is_wider_than_the_terminal():
    natural = 1 + 3 + len("final evaluation") + 8 * (3 + len(FIGURES[0]))
    assert "more columns" not in printed(natural) and "more columns" in printed(natural - 1)


def test_a_terminal_too_narrow_for_one_column_folds_its_figures_and_cuts_none():
    narrow = printed(24)
    assert narrow.count("By phase") == 8 and "…" not in narrow


def test_a_table_without_rows_has_its_heads():
    assert "phase" in printed(80, Table("Empty", ("phase", "calls"), ()))
