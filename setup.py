"""What ``pyproject.toml`` cannot say: the module in C, and that a build without it is a build.

One file serves all Pythons from 3.11 on (the limited API), so a wheel is tagged ``cp311-abi3``.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "magnetar._speedups",
            ["src/magnetar/_speedups.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,  # without a compiler: pure Python (magnetar/speedups)
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
