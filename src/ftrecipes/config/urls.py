"""URLs of data files: `s3://bucket/rows.jsonl`, `https://host/rows.csv.gz?key=...`."""

import re

URL = re.compile(r"([a-z][a-z0-9+.-]+)://(?=\S)", re.IGNORECASE)
DRIVERS = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "aiohttp")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3fs")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcsfs")),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), ("adlfs", "adlfs")),
    **dict.fromkeys(("sftp", "ssh"), ("paramiko", "paramiko")),
}
"""Scheme -> the module that fsspec reads it with, and the package that has it.

Other schemes are fsspec's to judge, which comes with `datasets` and reads hf:// without more.
"""


def is_url(value: str) -> bool:
    """Whether `value` names something by a scheme, and nothing of this machine."""
    return URL.match(value) is not None


def scheme_of(url: str) -> str:
    """`https` of `https://...`."""
    return url.partition("://")[0].lower()


def bare(url: str) -> str:
    """Without what may be secret: user, password and query."""
    if scheme_of(url) not in ("http", "https"):
        # Before an @ may stand what is no secret (abfs://container@account), but no password.
        return re.sub(r"(?<=://)[^/@]*:[^/@]*@", "", url)
    return re.sub(r"(?<=://)[^/@]*@", "", re.split("[?#]", url, maxsplit=1)[0])


def last_name(url: str) -> str:
    """The file that a URL ends in: `rows.csv.gz`."""
    return bare(url).rpartition("/")[2]
