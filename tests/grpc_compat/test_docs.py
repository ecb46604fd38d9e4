#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/grpc_compat.md, line by line, with the library as it was built."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import LIBRARY, PATIENCE, Server, ended, environment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpc_compat.md"


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.page = PAGE.read_text(encoding="utf-8")

    def line(self, pattern):
        found = re.search(rf"^    ({pattern})$", self.page, re.MULTILINE)
        self.assertIsNotNone(found, f"the page has no line {pattern}")
        return found.group(1)

    def variables(self):
        """As if the library were installed."""
        return {**environment(None), "LD_PRELOAD": "", "LD_LIBRARY_PATH": os.path.dirname(LIBRARY),
                "LIBRARY_PATH": os.path.dirname(LIBRARY),
                "C_INCLUDE_PATH": str(PAGE.parents[1] / "grpc_compat" / "include"),
                "PKG_CONFIG_PATH": os.environ["DROPIN_PKG_CONFIG"]}

    def test_client_and_server(self):
        sources = re.findall(r"^```c\n(.*?)^```$", self.page, re.DOTALL | re.MULTILINE)
        for name, source in zip(("client", "server"), sources, strict=True):
            (self.folder / f"{name}.c").write_text(source, encoding="utf-8")
            subprocess.run(["sh", "-c", self.line(f"cc {name}.c .*")], cwd=self.folder, check=True,
                           env=self.variables(), timeout=PATIENCE)
        serve = f"cd {self.folder}; exec env {self.line('LD_PRELOAD=.*/server')}"
        with Server(["sh", "-c", serve], None, self.variables()) as server:
            for command, aside in ((self.line("LD_PRELOAD=.*/client"), True), ("./client", False)):
                command = command.replace("=tcp", "=tcp,log=info,wait_ms=5000")
                client = subprocess.run(["sh", "-c", f"{command} {server.target}"],
                                        cwd=self.folder, env=self.variables(), text=True,
                                        capture_output=True, timeout=PATIENCE, check=False)
                end = ended(client.returncode, client.stdout, client.stderr)
                self.assertEqual((end.status, end.output), (0, "status 0, 1048576 bytes came back"),
                                 end.errors)
                if aside:
                    self.assertEqual((end.counters.sent, end.counters.received,
                                      end.counters.copied), (1, 1, 0), end.errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
