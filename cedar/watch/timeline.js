// The timeline of a page: lanes of spans on a canvas, of which only what can be seen is drawn.
"use strict";
(() => {
  const box = document.getElementById("cedar-lanes");
  const said = document.getElementById("cedar-at");
  const data = JSON.parse(document.getElementById("cedar-spans").textContent);
  const canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
  const LANE = 18, LEFT = 150;
  const lanes = data.lanes.map(() => []); // of each its spans, in order of time: [start, seconds, name]
  for (let i = 0; i < data.spans.length; i += 4)
    lanes[data.spans[i]].push([data.spans[i + 1] / 1e6, data.spans[i + 3] / 1e6, data.spans[i + 2]]);
  const colour = (n) => (data.names[n] === data.waiting ? "#fecaca" : `hsl(${(n * 67 + 30) % 360} 60% 60%)`);
  const whole = Math.max(1e-6, ...lanes.flat().map((span) => span[0] + span[1]));
  let from = 0, upto = whole;

  const first = (spans, time) => { // the first span that ends after a time
    let low = 0, high = spans.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (spans[mid][0] + spans[mid][1] < time) low = mid + 1; else high = mid;
    }
    return low;
  };

  const draw = () => {
    const ratio = window.devicePixelRatio || 1, width = box.clientWidth - 2, height = lanes.length * LANE + 18;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    const scale = (width - LEFT) / (upto - from), seen = new Map();
    lanes.forEach((spans, lane) => {
      const y = lane * LANE;
      pen.fillStyle = "#111"; pen.fillText(data.lanes[lane], 2, y + LANE / 2, LEFT - 8);
      let last = -1;
      for (let i = first(spans, from); i < spans.length && spans[i][0] < upto; i++) {
        const [start, took, name] = spans[i];
        const inside = Math.min(start + took, upto) - Math.max(start, from);
        seen.set(name, (seen.get(name) || 0) + Math.max(inside, 0));
        const x = LEFT + Math.max(start - from, 0) * scale, end = LEFT + Math.min(start + took - from, upto - from) * scale;
        if (end < last + 0.5) continue; // less than a pixel beside what is drawn
        pen.fillStyle = colour(name);
        pen.fillRect(x, y + 2, Math.max(end - x, 0.7), LANE - 4);
        if (end - x > 60) {
          pen.fillStyle = "#111";
          pen.save(); pen.beginPath(); pen.rect(x, y, end - x - 2, LANE); pen.clip();
          pen.fillText(data.names[name], x + 3, y + LANE / 2); pen.restore();
        }
        last = end;
      }
    });
    pen.fillStyle = "#111";
    for (let i = 0; i <= 4; i++)
      pen.fillText(`${(from + (upto - from) * i / 4).toPrecision(4)} s`, LEFT + i / 4 * (width - LEFT - 60), height - 9);
    const most = [...seen].sort((a, b) => b[1] - a[1]).slice(0, 4);
    said.textContent = `${from.toFixed(3)} to ${upto.toFixed(3)} s: ` +
      (most.map(([name, seconds]) => `${data.names[name]} ${seconds.toFixed(3)} s`).join(", ") || "nothing");
  };
  let due = false;
  const later = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; draw(); }); } };

  const show = (start, end) => {
    const wide = Math.min(Math.max(end - start, 1e-6), whole);
    from = Math.min(Math.max(start, 0), whole - wide); upto = from + wide;
    later();
  };
  const zoom = (by, at) => show(at - (at - from) * by, at + (upto - at) * by);
  const time = (event) => {
    const edges = canvas.getBoundingClientRect();
    return from + Math.max(event.clientX - edges.left - LEFT, 0) / (edges.width - LEFT) * (upto - from);
  };
  box.addEventListener("keydown", (event) => {
    const wide = upto - from, middle = (from + upto) / 2;
    const moves = {
      ArrowLeft: () => show(from - wide / 5, upto - wide / 5), ArrowRight: () => show(from + wide / 5, upto + wide / 5),
      "+": () => zoom(0.5, middle), "=": () => zoom(0.5, middle), "-": () => zoom(2, middle), Home: () => show(0, whole),
    };
    if (event.ctrlKey || event.metaKey || !(event.key in moves)) return;
    event.preventDefault(); moves[event.key]();
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
    event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event));
  }, { passive: false });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, from, upto]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const by = (event.clientX - held[0]) / (canvas.clientWidth - LEFT) * (held[2] - held[1]);
      show(held[1] - by, held[2] - by);
    } else {
      const lane = Math.floor((event.clientY - canvas.getBoundingClientRect().top) / LANE), at = time(event);
      const span = (lanes[lane] || [])[first(lanes[lane] || [], at)];
      canvas.title = span && span[0] <= at ? `${data.names[span[2]]}: ${(span[1] * 1e3).toFixed(3)} ms` : "";
    }
  });
  canvas.addEventListener("pointerup", () => { held = null; });
  window.addEventListener("resize", later);
  draw();
})();
