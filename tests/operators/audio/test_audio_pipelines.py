"""Audio in pipelines: chains against one after the other, plans, executors, and bad files under a policy."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.columns import type_of
from cedar.core.errors import RowError
from cedar.operators import audio
from cedar.operators.audio.clips import ClipTransform
from cedar.operators.transform import BadValues, Link, as_tuple
from tests.operators.audio.toy_sounds import binary, draws, file, noise, same

FILES = [
    file(noise(3000), 16000, "WAV"), file(noise(2500, 2), 16000, "FLAC"), file(noise(4000), 16000, "WAV", "FLOAT"),
    b"not a sound", file(noise(3000, 2), 16000)[:-10], file(np.zeros(2000), 16000), file(noise(90), 16000),
    file(noise(2000), 8000), file(noise(2200, 2), 16000, "OGG", "VORBIS"), b"",
]  # fmt: skip

CLIP = [
    audio.crop(1500, 100), audio.random_crop(1200), audio.gain(-3.0), audio.random_gain(-6.0, 6.0),
    audio.trim(frame=256, hop=64),
    audio.normalize(), audio.resample(8000, source=16000), audio.random_time_stretch(0.8, 1.2, n_fft=256),
]  # fmt: skip
FIRST = [audio.decode(mono=True), audio.decode(mono=True, rate=16000), audio.decode_random(0.1, mono=True)]
LAST = [audio.pad(3000, longer="crop"), audio.log_mel(n_mels=8), audio.pad(2000)]
AFTER = [audio.time_mask(5), audio.frequency_mask(3, value=-1.0)]


def one_after_the_other(links, columns, keyed):
    """What each transform alone makes of the rows that are left, and at which link each other row was lost."""
    columns, rows, faults = dict(columns), np.arange(len(next(iter(columns.values())))), {}
    for place, (link, draw) in enumerate(zip(links, keyed, strict=True)):
        given = [columns[name] for name in link.reads]
        link.transform.result(*(type_of(column) for column in given))
        more = {} if draw is None else {"draws": draw.take(rows)}
        try:
            made = link.transform.columns(*given, **more)
        except BadValues as bad:
            good = np.array([i for i in range(len(rows)) if i not in bad.rows], dtype=np.int64)
            faults |= {int(rows[i]): (place, why) for i, why in bad.rows.items()}
            columns = {k: c.take(good) if not isinstance(c, np.ndarray) else c[good] for k, c in columns.items()}
            rows = rows[good]
            given = [columns[name] for name in link.reads]
            more = {} if draw is None else {"draws": draw.take(rows)}
            made = link.transform.columns(*given, **more)
        columns |= dict(zip(link.writes, as_tuple(made), strict=True))
    return columns, rows, faults


@given(st.data())
def test_a_chain_gives_what_its_links_give_one_after_the_other(data):
    names = data.draw(st.lists(st.sampled_from(CLIP), max_size=4))
    names += data.draw(st.sampled_from([[], *([last] for last in LAST)]))
    if names and isinstance(names[-1], audio.log_mel):
        names += data.draw(st.lists(st.sampled_from(AFTER), max_size=2))
    first = data.draw(
        st.sampled_from(
            [audio.decode(mono=True), audio.decode(mono=True, rate=16000), audio.decode_random(0.1, mono=True)]
        )
    )
    links, at = [Link(first, ("bytes",), ("a",))], "a"
    for transform in names:
        to = data.draw(st.sampled_from([at, at, at, "b", "c"]))
        links.append(Link(transform, (at,), (to,)))
        at = to
    keyed = [draws(len(FILES), seed=n) if link.transform.random else None for n, link in enumerate(links)]
    columns = {"bytes": binary(FILES)}
    chain = ClipTransform.chain
    assert all(chain.joins(links[:n], links[n]) for n in range(1, len(links)))
    done, faults = chain.run(links, columns, keyed)
    want, rows, lost = one_after_the_other(links, columns, keyed)
    assert {row: (fault.link, fault.why) for row, fault in faults.items()} == lost
    assert set(done) == {name for link in links for name in link.writes}
    for name, column in done.items():
        assert type_of(column) == type_of(want[name])
        assert same([column[row] for row in rows], list(want[name]))


def test_a_crop_reads_no_more_of_a_file_than_it_keeps(monkeypatch):
    read = []
    module = importlib.import_module("cedar.operators.audio.decode")
    opened = module.open_audio
    monkeypatch.setattr(module, "open_audio", lambda data: Watched(opened(data), read))
    links = [Link(audio.decode(), ("bytes",), ("a",)), Link(audio.random_crop(100), ("a",), ("a",))]
    done, _ = ClipTransform.chain.run(links, {"bytes": binary(FILES[:3])}, [None, draws(3)])
    assert [len(clip) for clip in done["a"]] == [100, 100, 100]
    assert [stop - start for start, stop in read] == [100, 2500, 4000]  # FLAC and floats are checked as a whole


class Watched:
    """A file that notes what is read of it."""

    def __init__(self, opened, read):
        self.opened, self.noted = opened, read

    def __getattr__(self, name):
        return getattr(self.opened, name)

    def read(self, start, stop):
        self.noted.append((start, stop))
        return self.opened.read(start, stop)


def test_a_short_part_does_not_keep_a_long_clip():
    made = audio.crop(10).columns(audio.decode().columns(binary(FILES[:1])))
    assert made[0].base is None or made[0].base.nbytes <= 80


# ---- pipelines -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for n in range(24):
        values = noise(1500 + 211 * n, 1 + n % 2, seed=n)
        format = ("WAV", "FLAC")[n % 3 == 1]
        (tmp_path / f"{n:02}.{format.lower()}").write_bytes(file(values, 16000, format))
    return tmp_path


def speech(folder, on_error=None):
    return (
        cedar.read_files(str(folder / "*"))
        .map(audio.decode(mono=True), "bytes", into="audio", on_error=on_error)
        .map(audio.random_gain(-6.0, 6.0), "audio")
        .map(audio.random_crop(4000), "audio")
        .map(audio.resample(8000, source=16000), "audio")
        .map(audio.pad(2000), "audio")
        .map(audio.log_mel(rate=8000, n_fft=200, n_mels=16, hop_length=80), "audio", into="mel")
        .map(audio.time_mask(4), "mel")
        .select("path", "mel")
    )


def batches(p, **more):
    with p.batch(5, last="keep").loader(seed=3, **more) as loader:
        return [batch for _ in range(2) for batch in loader]


def equal(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert one["mel"].dtype == np.float32
        assert one["mel"].tobytes() == other["mel"].tobytes()
        assert list(one["path"]) == list(other["path"])


def test_plans_and_executors_give_the_same(folder):
    plain = batches(speech(folder), plan="off", executor="inline")
    assert len(plain) == 10
    assert plain[0]["mel"].shape == (5, 16, 26)
    assert plain[0]["mel"].tobytes() != plain[5]["mel"].tobytes()  # another epoch draws again
    for how in ({"plan": "auto"}, {"plan": "auto", "executor": "threads", "workers": 2},
                {"plan": "off", "executor": "processes", "workers": 1}):  # fmt: skip
        equal(batches(speech(folder), **how), plain)


def test_bad_files_are_skipped_and_told(folder):
    (folder / "03x.wav").write_bytes(b"RIFFnothing")
    (folder / "07x.flac").write_bytes(file(noise(5000), 16000, "FLAC")[:-500])
    with pytest.raises(RowError) as raised:
        list(speech(folder))
    assert "03x.wav" in str(raised.value)
    assert "test_audio_pipelines.py" in str(raised.value)
    skip = cedar.Skip(max_count=2)
    kept = [str(row["path"]) for row in speech(folder, skip)]
    assert len(kept) == 24
    assert not any("x." in path for path in kept)
    off = batches(speech(folder, skip), plan="off", executor="inline")
    equal(batches(speech(folder, skip), plan="auto"), off)
    assert sum(len(batch["path"]) for batch in off) == 48


def test_schema_and_explain(folder):
    p = speech(folder)
    assert str(p.schema["mel"]) == "float32[16, 26]"
    assert "Decode" in p.explain()


def test_rates_and_clips_in_two_columns(folder):
    p = cedar.read_files(str(folder / "*"))
    p = p.map(audio.rate(), "bytes", into="rate").map(audio.decode(mono=True), "bytes", into="audio")
    rows = list(p.map(audio.resample(8000), "audio", "rate").take(3))
    assert [row["rate"] for row in rows] == [16000] * 3
    assert len(rows[0]["audio"]) == 750
