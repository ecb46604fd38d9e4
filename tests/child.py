# SPDX-License-Identifier: Apache-2.0
"""A process that does not outlive the test."""

import subprocess


class Child:
    """Started with pipes; as a context manager it is killed, if need be, at the end of the block."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
