"""Builds the hollow CUDA: libhollow.so, which is preloaded, and libcuda.so.1.

A process under it has as many GPUs, of any compute capability and size, as its environment says.
Torch's own CUDA code runs, the host's side of it: checks of devices and dtypes, the choice of
kernels, the caching allocator, launches and waits. Kernels compute nothing, so that values on the
"device" mean nothing unless they were copied there.

Functions of CUDA's libraries that torch asks for and the sources here do not define return success.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("runtime.cpp", "libraries.cpp")
TORCH_LIBRARIES = ("libc10_cuda", "libtorch_cuda", "libtorch_python", "libtorch_cpu")
OF_CUDA = re.compile(r"(cuda[A-Z]|__cuda|cublas|cudnn|nccl|cufft|cusparse)")
# CUDA's headers want this one of its compiler's.
HOST_DEFINES = """
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __CUDA_DEPRECATED
#define CUDARTAPI
#define __host__
#define __device__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
"""


def missing() -> str:
    """Why it can't be built here; empty if it can."""
    for tool in ("g++", "nm"):
        if shutil.which(tool) is None:
            return f"the hollow CUDA is built with {tool}, which is not there"
    if not (_torch() / "lib" / "libtorch_cuda.so").exists():
        return "this torch is built without CUDA"
    if not list(_torch().parent.glob("nvidia/*/include/driver_types.h")):
        return "CUDA's headers are not installed beside torch"
    return ""


def build() -> Path:
    """The folder with both libraries; built once for each version of the sources and of torch."""
    inputs = [*(HERE / name for name in (*SOURCES, "hollow.h", "driver.cpp", "build.py"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs))
    digest.update((_torch() / "version.py").read_bytes())
    folder = Path(tempfile.gettempdir()) / f"hollow-cuda-{digest.hexdigest()[:16]}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(prefix="hollow-cuda-") as name:
        made = Path(name) / "made"
        made.mkdir()
        _build_into(made)
        try:
            made.rename(folder)  # whole or not at all, as tests run side by side
        except OSError:
            assert folder.exists()  # another test's
    return folder


def _torch() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _build_into(folder: Path) -> None:
    include = folder / "include" / "crt"
    include.mkdir(parents=True)
    (include / "host_defines.h").write_text(HOST_DEFINES)
    (folder / "stubs.cpp").write_text(_stubs())
    (headers,) = [found.parent for found in _torch().parent.glob("nvidia/*/include/driver_types.h")]
    sources = [*(HERE / name for name in SOURCES), folder / "stubs.cpp"]
    flags = ["-w", "-O1", "-shared", "-fPIC", "-std=c++17"]
    includes: list[str | Path] = ["-I", include.parent, "-I", headers, "-I", HERE]
    _run("g++", *flags, *includes, *sources, "-o", folder / "libhollow.so", "-ldl")
    _run("g++", *flags, HERE / "driver.cpp", "-o", folder / "libcuda.so.1", "-ldl")


def _stubs() -> str:
    """Functions that return success, for all that torch asks for and nobody defines."""
    asked: set[str] = set()
    for name in TORCH_LIBRARIES:
        library = _torch() / "lib" / f"{name}.so"
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        )
        symbols = (line.split()[-1].split("@")[0] for line in listed.stdout.splitlines())
        asked |= {symbol for symbol in symbols if OF_CUDA.match(symbol)}
    text = "".join((HERE / name).read_text() for name in SOURCES)
    defined = set(re.findall(r"\b(\w+)\s*\(", text)) | set(re.findall(r"[A-Z_]+\((\w+)[,)]", text))
    stubs = "".join(f"int {name}() {{ return 0; }}\n" for name in sorted(asked - defined))
    return f'extern "C" {{\n{stubs}}}\n'


def _run(*command: object) -> None:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
