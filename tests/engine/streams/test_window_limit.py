from cedar.engine.streams.splits import Window

MIB = 1 << 20


def test_a_window_holds_no_more_than_was_asked_for():
    assert Window(4 * MIB).limit(100_000 * MIB, None) == 4 * MIB


def test_a_window_holds_at_most_a_64th_of_the_epoch():
    assert Window(256 * MIB).limit(6400 * MIB, None) == 100 * MIB


def test_a_window_of_few_bytes_is_bounded_by_rows_so_that_ranks_can_share_the_epoch():
    rows = 6_400_000
    assert Window().limit(8.0 * rows, rows) == 8 * rows / 64  # one row group of 100,000, not the 10 that make 8 MiB
    assert Window().limit(8.0 * 100_000, 100_000) == 8 * 65_536
    assert Window().limit(8.0 * 100_000, None) == 8 * MIB
