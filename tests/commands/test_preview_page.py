"""The page of a preview: read by an HTML parser, and by a browser where one is installed."""

import json
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from ftrecipes.commands import preview
from ftrecipes.data.facts import IGNORED
from tests.conftest import write_lines
from tests.data.dialogs import chat, rows_of, tokenize
from tests.tiny_tokenizers import build_tokenizer

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
NASTY = '<script>document.title="taken"</script><img src="http://127.0.0.1/x">&amp;'
ROWS = [
    chat("Hello", "I am well"),
    chat(NASTY, f"no {NASTY}\n\U0001f469\u200d\U0001f680"),
    chat("Bread?", "Salt. " * 20, "And?", "Tea."),
]


class Page(HTMLParser):
    """Elements of a page by tag with their attributes, spans with their text too."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.spans: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "span":
            self.spans.append((dict(attrs)["class"], dict(attrs)["title"], ""))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] == "span":
            kind, title, text = self.spans[-1]
            self.spans[-1] = (kind, title, text + data)

    def handle_endtag(self, tag):
        self.elements.append((f"/{tag}", {}))


@pytest.fixture(scope="module")
def page(model_folder, tmp_path_factory):
    """A page of three rows, and the file it is in."""
    folder = tmp_path_factory.mktemp("page")
    path = write_lines(folder / "train.jsonl", ROWS)
    words = ["--model_name", str(model_folder), "--dataset", str(path), "--rows", "9"]
    with pytest.raises(SystemExit) as ended:
        preview.main([*words, "--html", str(folder / "page.html")])
    assert ended.value.code == 0
    return folder / "page.html"


def expected_tokens() -> list[tuple[str, int]]:
    """Kind and id of every token, in the order of the file."""
    made = tokenize(ROWS, build_tokenizer("chatml"))
    pairs = [pair for ids, labels in rows_of(made) for pair in zip(ids, labels, strict=True)]
    return [("c" if label == IGNORED else "t", token) for token, label in pairs]


def test_every_token_is_there_with_its_kind_and_reason(page):
    spans = Page(page.read_text(encoding="utf-8")).spans
    found = [(kind, int(title.split("id ")[1].split("\n")[0])) for kind, title, _ in spans]
    assert sorted(found) == sorted(expected_tokens())
    for kind, title, _ in spans:
        assert title.split("\n")[1].startswith({"t": "trained: ", "c": "context: "}[kind])
    trained = "".join(text for kind, _, text in spans if kind == "t")
    assert f"no {NASTY}" in trained


def test_nothing_comes_from_elsewhere_and_nothing_runs(page):
    parsed = Page(page.read_text(encoding="utf-8"))
    tags = {tag for tag, _ in parsed.elements}
    assert tags.isdisjoint({"script", "img", "link", "iframe", "object", "base"})
    for _, attributes in parsed.elements:
        assert not {"src", "href", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert any("default-src 'none'" in (a.get("content") or "") for _, a in parsed.elements)
    style = page.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_a_token_that_is_markup_itself_is_text(model_folder, tmp_path):
    path = write_lines(tmp_path / "train.jsonl", [chat("a <script> b", "c <i> d")])
    words = ["--model_name", str(model_folder), "--dataset", str(path)]
    more = ["--new_tokens", "<script>,<i>", "--html", str(tmp_path / "page.html")]
    with pytest.raises(SystemExit):
        preview.main([*words, *more])
    parsed = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert {"<script>", "<i>"} <= {text for _, _, text in parsed.spans}
    assert {tag for tag, _ in parsed.elements}.isdisjoint({"script", "i"})


def test_a_second_preview_replaces_the_page(page, model_folder):
    words = ["--model_name", str(model_folder), "--dataset", str(page.parent / "train.jsonl")]
    copy = page.with_name("again.html")
    shutil.copy(page, copy)
    with pytest.raises(SystemExit) as ended:
        preview.main([*words, "--html", str(copy), "--row", "1"])
    assert ended.value.code == 0
    assert copy.read_text(encoding="utf-8").count("<h2 id=") == 1


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser(page, tmp_path):
    """The page as the browser understood it: as many tokens, and the nasty row is only text."""
    options = ["--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=2000", f"file://{page}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    dom = Page(done.stdout)
    assert len(dom.spans) == len(expected_tokens())
    assert [kind for kind, _, _ in dom.spans].count("t") == [
        kind for kind, _ in expected_tokens()
    ].count("t")
    assert {tag for tag, _ in dom.elements}.isdisjoint({"script", "img"})
    assert "<title>Preview of" in done.stdout
    assert json.dumps("taken") not in done.stdout.split("</title>")[0]
