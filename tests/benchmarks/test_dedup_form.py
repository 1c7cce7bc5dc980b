from benchmarks import dedup


def test_pipelines_that_are_compared_give_the_same_rows():
    import cedar

    names = ["f0", "f1"]
    p = cedar.from_arrow(dedup.log(2 * dedup.BATCH, 16, 0.95, 2, 5))
    for work in (dedup._hashed, dedup._looked_up):
        with work(p, names).loader() as plain, work(p.dedup([names]), names).loader() as once:
            for one, other in zip(once, plain, strict=True):
                assert one["f0"].expand() == {name: other[name] for name in names}
