"""Files: the data folder, failed downloads, and pickles that must not run code."""

import contextlib
import io
import pickle
import re
import types
import urllib.error
import urllib.request

import numpy as np
import pytest

from graphfl_jax.data import files
from graphfl_jax.data.pickles import load_pickle

URL = "https://example.org/table"


def answer(body, *, url=URL, length=None):
    """A fake result of urlopen with the attributes that `fetch` reads."""
    headers = {"Content-Length": str(len(body) if length is None else length)}
    response = types.SimpleNamespace(url=url, headers=headers, read=io.BytesIO(body).read)
    return contextlib.nullcontext(response)


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_fetched_file_replaces_the_old_one(monkeypatch, tmp_path):
    (tmp_path / "table").write_text("old")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: answer(b"new"))
    files.fetch(URL, tmp_path / "table", max_bytes=3)
    assert contents(tmp_path) == {"table": "new"}


@pytest.mark.parametrize(
    "reply, error",
    [
        (answer(b"four"), ValueError),  # above the limit of three bytes
        (answer(b"ab", length=3), ConnectionError),  # incomplete
        (answer(b"abc", url="http://example.org/table"), ValueError),  # redirected
        (urllib.error.URLError("no route"), urllib.error.URLError),
        (TimeoutError("slow"), TimeoutError),
    ],
)
def test_failed_download_changes_no_file(monkeypatch, tmp_path, reply, error):
    def urlopen(url, timeout):
        if isinstance(reply, Exception):
            raise reply
        return reply

    (tmp_path / "table").write_text("old")
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(error):
        files.fetch(URL, tmp_path / "table", max_bytes=3)
    assert contents(tmp_path) == {"table": "old"}


def test_plain_http_is_refused_before_any_connection(monkeypatch, tmp_path):
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda url, timeout: pytest.fail("connected")
    )
    with pytest.raises(ValueError, match="http://example.org.*https"):
        files.fetch("http://example.org", tmp_path / "table", max_bytes=3)


def test_default_root_depends_on_the_environment(monkeypatch, tmp_path):
    for variable, root in {
        "HOME": tmp_path / ".cache" / "graphfl_jax",
        "XDG_CACHE_HOME": tmp_path / "graphfl_jax",
        "GRAPHFL_DATA": tmp_path,
    }.items():
        with monkeypatch.context() as patch:
            patch.delenv("GRAPHFL_DATA", raising=False)
            patch.delenv("XDG_CACHE_HOME", raising=False)
            patch.setenv(variable, str(tmp_path))
            assert files.default_root() == root


def test_path_is_checked():
    files.check_path("", "simulated", reading=("auto", "real"))
    files.check_path(__file__, "real", reading=("auto", "real"))
    with pytest.raises(FileNotFoundError, match="data.path='none.txt' is not a file; correct"):
        files.check_path("none.txt", "real", reading=("auto", "real"))
    with pytest.raises(
        ValueError,
        match="data.path='none.txt' is not read with data.source='simulated'; .*auto or real",
    ):
        files.check_path("none.txt", "simulated", reading=("auto", "real"))


def test_error_of_missing_files_survives_pickling():
    error = files.MissingFilesError("toy: no file a; get it", "simulated")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert str(copy) == "toy: no file a; get it, or set --config.data.source=simulated"
    assert copy.missing == "toy: no file a; get it"


@pytest.mark.parametrize("protocol", range(6))
def test_pickled_arrays_and_containers_are_read(tmp_path, protocol):
    array = np.arange(6.0).reshape(2, 3)
    texts = np.array(["é", "ab"])
    containers = [("é", b"\xff", {1: None}), np.float32(0.5), array.T.astype(">i2"), texts]
    path = tmp_path / "content.pkl"
    path.write_bytes(pickle.dumps((array, containers), protocol))
    read = load_pickle(path)
    np.testing.assert_array_equal(read[0], array)
    assert read[1][:2] == containers[:2]
    for made, pickled in zip(read[1][2:], containers[2:], strict=True):
        np.testing.assert_array_equal(made, pickled)
        assert made.dtype == pickled.dtype


def test_a_pickle_whose_lines_git_has_ended_by_crlf_is_read(tmp_path):
    content = [["1", "2\r\n"], {"1": 0}, np.arange(30.0)]
    path = tmp_path / "content.pkl"
    path.write_bytes(pickle.dumps(content, 0).replace(b"\n", b"\r\n"))
    read = load_pickle(path)
    assert read[:2] == content[:2]
    np.testing.assert_array_equal(read[2], content[2])


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n \r\n"])
def test_text_has_neither_a_mark_nor_blank_lines_at_its_end(tmp_path, mark, end):
    (tmp_path / "text").write_bytes(mark + b" a\r\n\nb\xff" + end)
    assert files.read_text(tmp_path / "text").splitlines() == [" a", "", "b\xff"]


@pytest.mark.parametrize("call", ["os system", "builtins eval", "numpy load"])
def test_pickled_calls_are_refused_and_not_run(tmp_path, call):
    created = tmp_path / "created"  # a file that exists only if the pickled call has run
    program = f"open({str(created)!r}, 'w')" if "eval" in call else f"touch {created}"
    module, name = call.split()
    # Protocol 0: load the function, push a tuple of one string, call.
    path = tmp_path / "evil.pkl"
    path.write_text(f"c{module}\n{name}\n(V{program}\ntR.")
    with pytest.raises(ValueError, match=rf"evil.pkl.*{module}.{name} is refused") as caught:
        load_pickle(path)
    assert "\n" not in str(caught.value)
    assert not created.exists()


class Forged:
    """Pickled as a call of a function, and perhaps a state for its result."""

    def __init__(self, function, arguments, *state):
        self.reduced = (function, arguments, *state)

    def __reduce__(self):
        return self.reduced


RECONSTRUCT = np.empty(0).__reduce__()[0]
ARRAY = (RECONSTRUCT, (np.ndarray, (0,), b"b"))
FIELD = {"pointer": (np.dtype("O"), 0)}


def forged_type(*state, code="V8"):
    return Forged(np.dtype, (code, False, True), (3, *state, -1, -1, 0))


@pytest.mark.parametrize(
    "content, why",
    [
        # A type of eight bytes that are read as a reference, by a field or as a part.
        (forged_type("|", None, ("pointer",), FIELD), "a type with fields is refused"),
        (forged_type("|", (np.dtype("O"), (1,)), None, None), "a type with fields is refused"),
        (forged_type("|", None, None, None), "the type 'V8' is refused"),
        (forged_type("|", None, None, None, code="O8"), "the type 'O8' is refused"),
        (forged_type("|", None, None, None, code="f8,f8"), "the type 'f8,f8' is refused"),
        (forged_type("!", None, None, None, code="f8"), "the type 'f8' is refused"),
        (np.dtype("f8"), "a type and no array"),
    ],
)
def test_pickled_types_with_references_are_refused(tmp_path, content, why):
    array = Forged(*ARRAY, (1, (1,), content, False, b"A" * 8))
    path = tmp_path / "forged.pkl"
    path.write_bytes(pickle.dumps(array if "no array" not in why else [content], 2))
    with pytest.raises(ValueError, match=re.escape(why.split(" and ")[0])):
        load_pickle(path)


@pytest.mark.parametrize(
    "function", [RECONSTRUCT, np.empty(0).__reduce_ex__(5)[0]], ids=lambda f: f.__name__
)
def test_functions_of_numpy_get_no_state_from_a_pickle(tmp_path, function):
    """A state of attributes would change the defaults of the function in this process."""
    before = getattr(function, "__defaults__", None)
    # Protocol 0: the function, then (None, {"__defaults__": (1,)}), then build.
    path = tmp_path / "forged.pkl"
    name = f"c{function.__module__}\n{function.__name__}\n"
    path.write_text(name + "(N(S'__defaults__'\n(I1\ntdtb.")
    with pytest.raises(ValueError, match="a function with a state is refused"):
        load_pickle(path)
    assert getattr(function, "__defaults__", None) == before


def test_damaged_pickles_are_refused(tmp_path):
    whole = pickle.dumps({"a": np.arange(100.0)}, 2)
    path = tmp_path / "torn.pkl"
    for damaged in (b"", whole[:50], whole[:-20], b"not a pickle", whole[100:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"torn\.pkl: the file is not a complete pickle"):
            load_pickle(path)


def test_official_sensor_graph_is_read(data_root):
    ids, index, weights = load_pickle(data_root / "metr-la" / "adj_mx.pkl")
    assert [index[sensor] for sensor in ids] == list(range(207))
    np.testing.assert_array_equal(np.diag(weights), np.ones(207))
    assert np.count_nonzero(weights) - 207 == 1515  # directed, self loops not counted
