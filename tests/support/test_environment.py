import subprocess
from pathlib import Path

import pytest

import fedntd
from fedntd.support.environment import commit

ROOT = Path(fedntd.__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not run from a source tree")
def test_the_commit_is_that_of_the_source_tree():
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    told = commit()
    assert told
    assert head.stdout.startswith(told.removesuffix("-dirty"))
