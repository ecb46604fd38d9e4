# SPDX-License-Identifier: Apache-2.0
"""The files that hold the results; whether they can be written is found out before the run."""

import errno
import json
import os
import sys
import tempfile

from processes import Failure


def check(settings):
    if settings.json and settings.json != "-":
        check_file("--json", settings.json)
    if settings.report:
        check_folder(settings.report)


def check_file(option, path):
    """Opens it for writing, without changing or leaving anything."""
    existed = os.path.lexists(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        # A fifo that nobody reads yet.
        if error.errno == errno.ENXIO:
            return
        raise Failure(f"{option}: {path} can't be written: {error.strerror}") from error
    os.close(descriptor)
    if not existed:
        os.unlink(path)


def check_folder(path):
    """An existing folder is tried out; for one to be made, its nearest parent."""
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise Failure(f"--report: {path} can't be a folder: {folder} is none")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise Failure(f"--report: {path} can't be written: {error.strerror}") from error


def keep_json(path, results):
    """Writes what is there so far, where a file can be written again."""
    if path and path != "-" and not (os.path.exists(path) and not os.path.isfile(path)):
        write_json(path, results)


def write_json(path, results):
    try:
        if path == "-":
            json.dump(results, sys.stdout, indent=2, ensure_ascii=False)
            print()
            return
        with open(path, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2, ensure_ascii=False)
            file.write("\n")
    except OSError as error:
        raise Failure(f"{path} can't be written: {error.strerror}") from error
