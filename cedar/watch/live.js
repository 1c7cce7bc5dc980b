// A live page: asks the run for its report each second, and says when it no longer answers.
"use strict";
(() => {
  const shown = document.getElementById("cedar-live"), said = document.getElementById("cedar-state");
  const ask = async () => {
    try {
      const answer = await fetch("report" + location.search, { signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error(await answer.text());
      shown.innerHTML = await answer.text();
      said.textContent = "running";
    } catch (error) {
      said.textContent = "no run answers any more; below is the last that it said";
    }
    setTimeout(ask, 1000);
  };
  setTimeout(ask, 1000);
})();
