"""What a report of a whole audit leaves out: environment variables, home folders, host and user names."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from deviceless_audits import audit

from fusionaudit.report.html import render_html
from fusionaudit.report.markdown import render_markdown
from fusionaudit.report.perfetto import render_perfetto

SECRET = "s3cr3t-5f1d0a"
SCRIPT = """
import torch

x = torch.ones(1 << 20, device="cuda")


def step():
    return x.exp().neg().sum()


for _ in range(4):
    step()
"""


def test_a_whole_audit_names_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("MY_SETTING", SECRET)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-7")
    document = audit(monkeypatch, tmp_path, SCRIPT).document
    assert document["findings"]
    # The script as if it lay in a home folder.
    text = json.dumps(document)
    assert str(tmp_path) in text
    document = json.loads(text.replace(str(tmp_path), "/home/ada/work"))
    for render in (render_html, render_markdown, render_perfetto):
        page = render(document)
        assert "script.py" in page
        for private in (SECRET, "HF_TOKEN", "MY_SETTING", "gpu-box-7", "/home/ada", "/root/"):
            assert private not in page, (render, private)
