"""Webdataset shards in which some samples lack a part, with dots in their names."""

import io
import tarfile
import tempfile

import cedar

path = tempfile.mkdtemp() + "/shard.tar"
with tarfile.open(path, "w") as tar:
    for name in ("cat.v1.jpg", "cat.v1.txt", "dog.v2.jpg"):
        member = tarfile.TarInfo(name)
        member.size = 3
        tar.addfile(member, io.BytesIO(b"..."))
rows = cedar.read_tar(path, missing="null", dot="last")
print(list(rows))
assert [(row["key"], row["txt"]) for row in rows] == [("cat.v1", b"..."), ("dog.v2", None)]
