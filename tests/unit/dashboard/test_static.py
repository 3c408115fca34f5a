"""The built pages: those of the sources, small, and nothing that the server's policy forbids."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest

from dashboards import Client, Served, served

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "frontend"
STATIC = ROOT / "src" / "shanty" / "dashboard" / "static"
# As in frontend/scripts/built-from.mjs.
_NAMES = (
    "index.html",
    "package-lock.json",
    "package.json",
    "public",
    "src",
    "tsconfig.json",
    "vite.config.ts",
)
_LARGEST = 150_000  # bytes, compressed

needs_sources = pytest.mark.skipif(
    not SOURCES.is_dir(), reason="the front end's sources are not here"
)


def hash_of_sources() -> str:
    """What the bundle would be said to be built from now."""
    files = [
        path
        for name in _NAMES
        for path in (
            [SOURCES / name] if (SOURCES / name).is_file() else (SOURCES / name).rglob("*")
        )
        if path.is_file()
    ]
    found = hashlib.sha256()
    for name, path in sorted(
        (path.relative_to(SOURCES).as_posix().encode(), path) for path in files
    ):
        content = path.read_bytes()
        found.update(name + b"\0" + str(len(content)).encode() + b"\0" + content)
    return found.hexdigest()


@needs_sources
def test_the_licences_of_what_is_bundled_are_beside_it() -> None:
    packages = json.loads((SOURCES / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    bundled = set(packages[""]["dependencies"])
    for name in sorted(bundled):
        bundled.update(packages[f"node_modules/{name}"].get("dependencies", ()))
    text = (STATIC / "licenses.txt").read_text(encoding="utf-8")
    assert {"preact", "uplot"} <= bundled
    for name in bundled:
        assert f"\n{name} {packages[f'node_modules/{name}']['version']} (" in text


@needs_sources
def test_the_pages_are_built_from_these_sources() -> None:
    built = (STATIC / "built-from.txt").read_text(encoding="utf-8").split()
    assert built == ["sha256", hash_of_sources()], "build and commit them: ./dev frontend"


@needs_sources
def test_the_types_are_those_of_the_api() -> None:
    made = runpy.run_path(str(SOURCES / "scripts" / "api_types.py"))["text"]()
    assert (SOURCES / "src" / "api.ts").read_text(encoding="utf-8") == made, "./dev frontend"


@needs_sources
def test_packages_come_from_the_public_registry_alone() -> None:
    lock = json.loads((SOURCES / "package-lock.json").read_text(encoding="utf-8"))
    named = {package["resolved"] for package in lock["packages"].values() if "resolved" in package}
    assert all(address.startswith("https://registry.npmjs.org/") for address in named)


def test_the_page_needs_only_what_is_here() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    wanted = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(wanted) >= 3
    for address in wanted:
        assert address.startswith("./"), "a proxy may give the page any path"
        assert (STATIC / address.removeprefix("./")).is_file(), address
    assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\son\w+=|\sstyle=", page)


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in (*STATIC.rglob("*.css"), *STATIC.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|url\((?!#)", text), path.name


def test_all_of_it_is_small() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < _LARGEST


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("static") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def admin(up: Served) -> Client:
    return up.admin


# What the browser asks for, and what the server gets of it.
_BELOW = [
    ("/", "/", {}),
    ("/runs/some-run", "/runs/some-run", {}),
    ("/runs/some-run/", "/runs/some-run/", {}),
    ("/user/ann/proxy/8470/", "/", {}),
    ("/user/ann/proxy/8470/machines", "/machines", {}),
    ("/user/ann/proxy/8470/runs/some-run", "/runs/some-run", {}),
    ("/user/ann/proxy/absolute/8470/", "/user/ann/proxy/absolute/8470/", {}),
    ("/user/ann/proxy/absolute/8470/new", "/user/ann/proxy/absolute/8470/new", {}),
    ("/shanty/runs/some-run", "/shanty/runs/some-run", {}),
    ("/runs/", "/", {}),
    ("/runs/", "/runs/", {}),
    ("/api/v1/namespaces/lab/services/shanty:8470/proxy/compare", "/compare", {}),
    ("/shanty", "/", {"X-Forwarded-Prefix": "/shanty"}),
    ("/shanty/runs/some-run", "/runs/some-run", {"X-Forwarded-Prefix": "/shanty/"}),
]


@pytest.mark.parametrize(("browser", "server", "headers"), _BELOW)
def test_the_page_finds_its_files_and_the_api_below_any_path(
    up: Served, admin: Client, browser: str, server: str, headers: dict[str, str]
) -> None:
    taken = browser.removesuffix(server)  # what the proxy takes away
    if headers:
        taken = headers["X-Forwarded-Prefix"].rstrip("/")
    answer = admin.http.get(up.url + server, headers=headers)
    files = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert len(files) == 4
    for file in files:
        path = urljoin(f"http://hub{browser}", file).removeprefix("http://hub")
        assert path.startswith(taken)
        found = admin.http.get(up.url + path.removeprefix(taken))
        assert found.status_code == 200
        assert "html" not in found.headers["content-type"], path
        if "/assets/" in file and file.endswith(".js"):
            base = path.rpartition("assets/")[0]  # as the script finds it
            me = admin.get(f"{base.removeprefix(taken)}api/v1/me")
            assert me.json()["role"] == "admin"


@pytest.mark.parametrize(
    "prefix", ['/"><script>', "//evil.example", "https://evil.example", "xyzzy"]
)
def test_a_prefix_that_is_none_does_not_get_into_the_page(
    up: Served, admin: Client, prefix: str
) -> None:
    answer = admin.http.get(f"{up.url}/", headers={"X-Forwarded-Prefix": prefix})
    assert 'src="./theme.js"' in answer.text
    assert prefix not in answer.text.replace("./", "")


def test_a_path_without_its_slash_leads_to_the_page_only_behind_a_proxy(
    up: Served, admin: Client
) -> None:
    ask = admin.http.get
    assert ask(f"{up.url}/nowhere").status_code == 200
    behind = {"X-Forwarded-For": "10.0.0.9"}
    answer = ask(f"{up.url}/a/shanty?search=x", headers=behind)
    assert (answer.status_code, answer.headers["location"]) == (307, "shanty/?search=x")
    evil = ask(f"{up.url}//evil.example", headers=behind)
    assert evil.headers["location"] == "evil.example/"  # below this server, not another one
    for page in ("", "machines", "runs", "runs/x", "shanty/runs/x", "new", "login", "a/"):
        assert ask(f"{up.url}/{page}", headers=behind).status_code == 200


def test_the_token_has_a_header_of_its_own_where_a_proxy_uses_the_usual(
    up: Served, admin: Client
) -> None:
    basic = {"Authorization": "Basic YW5uOng="}
    page = admin.http.get(f"{up.url}/", headers=basic).text
    assert '<html data-token-header="X-Shanty-Token" ' in page
    assert "data-token-header" not in admin.http.get(f"{up.url}/").text
    me = f"{up.url}/api/v1/me"
    assert admin.http.get(me, headers=basic).status_code == 401
    given = {**basic, "X-Shanty-Token": admin.token}
    assert admin.http.get(me, headers=given).status_code == 200
    both = {"Authorization": f"Bearer {admin.token}", "X-Shanty-Token": "wrong"}
    assert admin.http.get(me, headers=both).status_code == 401
