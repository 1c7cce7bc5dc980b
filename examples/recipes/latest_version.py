"""Keep the last of several versions of each document, in the order in which the files list them."""

import cedar

versions = cedar.from_items([{"doc": i % 100, "version": i // 100, "text": f"text {i}"} for i in range(300)])
latest = versions.unique("doc", keep="last")
print(latest.head(3))
assert {row["version"] for row in latest} == {2}
assert versions.unique("doc", keep="none").count() == 0  # no document has one version only
