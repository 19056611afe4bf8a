"""URLs of data files among the flags: known by their scheme, checked without a connection."""

import importlib.util

import pytest

from ftrecipes.config import argv
from ftrecipes.config.parse import parse
from ftrecipes.config.urls import DRIVERS, bare, is_url, last_name
from tests.config.faults import faults_of


@pytest.fixture
def flags_of(needed):
    return lambda words: argv.split(needed, ()).flags | argv.split(words.split(), ()).flags


@pytest.fixture
def installed(monkeypatch):
    """Sets the modules that are there, of those that URLs are read with."""
    modules: set[str] = set()
    find = importlib.util.find_spec
    drivers = {module for module, _ in DRIVERS.values()}

    def find_spec(name):
        return find("json") if name in modules else None if name in drivers else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return modules


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("https://host/rows.jsonl.gz?key=1", "aiohttp"),
        ("s3://bucket/set/*.parquet", "s3fs"),
        ("GS://bucket/rows.csv", "gcsfs"),
        ("abfs://box@account/rows.txt", "adlfs"),
    ],
)
@pytest.mark.parametrize("flag", ["dataset", "data.val_file"])
def test_a_driver_that_is_missing_is_named(flags_of, installed, flag, url, package):
    (fault,) = faults_of(lambda: parse(flags_of(f"--{flag}={url}")))
    assert fault.startswith(
        f"--{flag} {bare(url)}: {url.split(':')[0].lower()}:// needs the package"
    )
    assert f"do: install it (pip install {package})" in fault
    installed.update(module for module, _ in DRIVERS.values())
    assert parse(flags_of(f"--{flag}={url}")).warnings == ()


@pytest.mark.parametrize(
    "url",
    ["https://host/", "https://host/rows", "s3://bucket/set", "hf://datasets/o/d", "s3://b/a.md"],
)
def test_a_url_that_names_no_file(flags_of, installed, url):
    (fault,) = faults_of(lambda: parse(flags_of(f"--dataset {url}")))
    assert fault.startswith(f"--dataset {url}: names no file of rows\n  expected: a URL that ends")
    assert "a data set of the hub by its id (owner/name)" in fault


@pytest.mark.parametrize("url", ["hf://datasets/o/d/rows.jsonl", "file:///rows.csv", "x+y://a.txt"])
def test_other_schemes_are_not_judged_here(flags_of, installed, url):
    assert parse(flags_of(f"--dataset {url}")).warnings == ()


def test_a_url_has_no_splits(flags_of, installed):
    (fault,) = faults_of(lambda: parse(flags_of("--dataset hf://a.jsonl --data.train_split x")))
    assert "the rows of hf://a.jsonl have no splits" in fault


@pytest.mark.parametrize(
    ("url", "place", "name"),
    [
        ("https://me:word@host/a/b.csv?key=1#top", "https://host/a/b.csv", "b.csv"),
        ("https://word@host/b.csv", "https://host/b.csv", "b.csv"),
        ("abfs://box@account/b.csv", "abfs://box@account/b.csv", "b.csv"),
        ("sftp://me:word@host/b?.csv", "sftp://host/b?.csv", "b?.csv"),
    ],
)
def test_what_may_be_secret_is_not_shown(url, place, name):
    assert (bare(url), last_name(url)) == (place, name)


@pytest.mark.parametrize("value", ["owner/name", "a:b.jsonl", "C://a.csv", "://a.csv", "./s3://"])
def test_what_is_no_url(value):
    assert not is_url(value)
