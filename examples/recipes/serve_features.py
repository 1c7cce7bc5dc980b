"""Use in a server what was fitted for training: the same scaling and numbering, on one request at a time."""

import tempfile
from pathlib import Path

import cedar
from cedar.preprocessing import StandardScaler, Vocabulary

path = tempfile.mkdtemp() + "/features.json"
training = cedar.from_items([{"age": 20 + i % 50, "city": f"c{i % 7}"} for i in range(700)])
fitted = cedar.fit(training, StandardScaler("age"), Vocabulary("city"))
fitted.save(path)
(trained,) = training.apply(fitted).limit(1)

served = cedar.Fitted.load(path)  # in another process; the file is JSON
print(Path(path).read_text())
(request,) = cedar.from_items([{"age": 20, "city": "c0"}]).apply(served)
(unknown,) = cedar.from_items([{"age": 45, "city": "elsewhere"}]).apply(served)
print(request, unknown)
assert request == trained
assert unknown["city"] == 0  # as all values that training did not have
