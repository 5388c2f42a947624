"""Two ranks of one job under the Hugging Face Trainer and on Accelerate: each counts its own rows, both tell of the same checkpoints."""

from collections.abc import Callable

from conftest import Books, expected, summed

# Of five rows of 8, 5, 6, 3 and 4 tokens one rank draws the first, third and fifth; the other the second, fourth, and the first again.
FIRST = {"valid_targets": 7 + 4 + 5 + 2, "consumed_tokens": 8 + 5 + 6 + 3, "input_slots": 4 * 8, "samples": 4}
REMAINDER = {"valid_targets": 3 + 7, "consumed_tokens": 4 + 8, "input_slots": 2 * 8, "samples": 2}


def test_two_ranks_count_each_their_own_rows_and_a_row_drawn_twice_is_told(launch: Callable[..., list[str]], books: Books) -> None:
    launch("job_huggingface.py", ranks=2)
    epoch = summed(FIRST, REMAINDER)
    assert books.counters("ranks-transformers") == expected(attempted=epoch, applied=epoch, preserved=epoch)
    assert [row["valid_targets"] for row in books.ask("ranks-transformers", "updates")["items"]] == [7 + 4 + 5 + 2, 3 + 7]
    stream = books.ask("ranks-transformers", "coverage")["streams"][0]
    assert (stream["repeated"], stream["times_seen"]) == ([[0, 1]], {"1": 4, "2": 1})

    twice = summed(epoch, epoch)
    assert books.counters("ranks-accelerate") == expected(attempted=twice, applied=twice, preserved=twice)
    report = books.ask("ranks-accelerate", "exposure")
    assert [(one["after"], one["through"]) for one in report["trajectory"]] == [(0, 2), (2, 4)] and report["findings"] == {}
    assert {one["state"] for one in books.ask("ranks-accelerate", "checkpoints")["checkpoints"]} == {"accepted"}
