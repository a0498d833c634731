"""The forecasts of docs/scaling.md: which steps are compiled, the arithmetic of the tables, and the page."""

import pytest

from tests import scripts

cells, pages, scaling, tables = scripts.load("cells", "pages", "scaling", "scaling_tables")


def test_a_batch_is_divided_among_chips_and_microbatches():
    def sizes(model, kind, chips):
        config = scaling.config_of(scaling.Cell(model, kind, "", 1), chips)
        return config and (config.training.batch_size, config.training.microbatches)

    assert [sizes("roberta_12", "strong", chips) for chips in (1, 8, 256, 512)] == [(256, 8), (256, 1), (256, 1), None]
    assert [sizes("roberta_12", "weak", chips) for chips in (1, 64)] == [(32, 1), (2048, 1)]
    assert [sizes("roberta_large", "strong", chips) for chips in (1, 64, 512)] == [(8192, 512), (8192, 8), (8192, 1)]


def test_rows_by_hand():
    def line(chips, slices, seconds, messages, network):
        forecast = {"messages": messages, "network": network}
        sizes = {"generation": "v5e", "shape": "2x4", "chips": chips, "slices": slices, "batch_size": 64, "fits": True}
        cost = {"mfu": 0.25, "run_seconds": 7200.0, "chip_hours": 2.0 * chips}
        return sizes | cost | {"forecast": forecast, "seconds": seconds, "tokens_per_second": 1000 / seconds}

    found = list(tables.rows([line(16, 2, 0.125, 0.01, 0.015), line(8, 1, 0.2, 0.01, 0.0)]))
    assert found == [
        ["8", "v5e:2x4", "8", "200 ms", "5,000", "100%", "5%", "25%", "2.0", "16", "19"],
        ["16", "2 x v5e:2x4", "4", "125 ms", "8,000", "80%", "20%", "25%", "2.0", "32", "38"],
    ]
    too_large = {**line(8, 1, 0.2, 0.0, 0.0), "fits": False}
    assert next(tables.rows([too_large]))[3:5] == ["does not fit", "–"]


def test_the_page_has_the_tables_and_numbers_of_the_record():
    lines, text = cells.read(tables.RECORD), (pages.ROOT / tables.PAGE).read_text()
    written = pages.with_tables(text, tables.PAGE, "scaling_tables.py", tables.tables(lines))
    assert written == text, "run `python benchmarks/scaling_tables.py`"

    of = {(line["model"], line["scaling"], line["chips"], line["slices"]): line for line in lines}
    words = " ".join(text.split())

    def each(*key):
        return of[key]["tokens_per_second"] / of[key]["chips"]

    for chips, said in ((16, "86 %"), (64, "48 %"), (256, "18 %")):
        share = each("roberta_12", "strong", chips, 1) / each("roberta_12", "strong", 1, 1)
        assert f"{100 * share:.0f} %" == said and said in words
    for model, kind, said in (
        ("roberta_12", "weak", 78),
        ("roberta_large", "strong", 78),
        ("roberta_12", "strong", 51),
    ):
        assert 100 * each(model, kind, 128, 2) / each(model, kind, 128, 1) == pytest.approx(said, abs=0.5)
        assert f"{said} %" in words
    one, two = of["roberta_12", "weak", 128, 1]["forecast"], of["roberta_12", "weak", 128, 2]["forecast"]
    longer = {name: round(1e3 * (two[name] - one[name])) for name in two}
    assert longer == {"operations": 30, "kernels": 0, "messages": 3, "network": 14}
    assert "47 ms longer than on one slice: 14 ms are the network between the slices, 3 ms other messages" in words
    full = of["roberta_large", "strong", 256, 1]
    assert f"{full['run_seconds'] / 3600:.0f} hours on 256 chips" in words
    assert "19,500 dollars" in words and round(tables.DOLLARS * full["chip_hours"], -2) == 19_500
