"""A folder's files as they are on disk: names, kinds, permissions, times, links and bytes."""

import hashlib
import os
import stat


def tree_of(folder):
    found = {}
    for parent, folders, files in os.walk(folder):
        for path in [parent, *(os.path.join(parent, name) for name in (*files, *folders))]:
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            else:
                content = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
            told = (oct(status.st_mode), status.st_mtime_ns, status.st_uid, content)
            found[os.path.relpath(path, folder)] = told + ((status.st_nlink,) if content != "" else ())
    return found
