from __future__ import annotations

from pathlib import Path

import pytest

from tests.hollow_cuda.conftest import HollowCuda

pytestmark = pytest.mark.timeout(900)  # programs of many seconds, on a machine that may be busy


@pytest.mark.slow
def test_no_model_breaks_the_graph_that_torch_compile_makes(
    hollow_cuda: HollowCuda, tmp_path: Path
) -> None:
    breaks = hollow_cuda.ask("tests.hollow_cuda.probe_compile", str(tmp_path))
    assert breaks == {"imagenet": [], "librispeech": [], "wmt14": [], "wikitext103": []}
