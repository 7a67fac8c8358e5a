// The step on a time axis: one row a pass, all on one scale. A canvas, as a step may have tens of thousands of kernels.
{
  const canvas = document.getElementById("timeline-canvas");
  const live = document.getElementById("timeline-live");
  const choice = document.getElementById("timeline-colour");
  const ROW = 34, LABEL = 18, AXIS = 22, PAD = 8;
  const rows = DATA.passes.map((pass) => {
    let at = 0;
    const start = Float64Array.from(pass.start, (delta) => (at += delta));
    const width = Float64Array.from(pass.width);
    // Running maximum of ends: kernels of other streams overlap, so ends alone are not sorted.
    const reach = new Float64Array(start.length);
    let most = 0;
    for (let i = 0; i < start.length; i++) { most = Math.max(most, start[i] + width[i]); reach[i] = most; }
    return { pass, start, width, reach, end: most };
  });
  const span = Math.max(1, ...rows.map((row) => row.end));
  let from = 0, to = span, chosen = null, wide = 800;
  const height = AXIS + rows.length * (ROW + LABEL + PAD);

  const GROUP_COLOURS = ["c-elementwise", "c-reduction", "c-index", "c-attention", "c-copy", "c-other", "pass1", "pass2"];
  const groupNames = new Map();
  function groupOf(kind) {
    const name = kind.graph || kind.phase || "no graph";
    if (!groupNames.has(name)) groupNames.set(name, groupNames.size);
    return name;
  }
  KINDS.forEach(groupOf);
  function colourOf(kind) {
    if (choice.value === "graph") return GROUP_COLOURS[groupNames.get(groupOf(kind)) % GROUP_COLOURS.length];
    if (choice.value === "finding") return kind.findings.length ? "save" : "line";
    return `c-${familyOf(kind)}`;
  }
  const xOf = (time) => (time - from) / (to - from) * wide;

  // First span that may reach into the view.
  function firstFrom(row, time) {
    let low = 0, high = row.reach.length;
    while (low < high) { const middle = (low + high) >> 1; if (row.reach[middle] < time) low = middle + 1; else high = middle; }
    return low;
  }

  function draw() {
    wide = canvas.clientWidth || 800;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, height);
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
    drawAxis(pen);
    rows.forEach((row, number) => drawRow(pen, row, AXIS + number * (ROW + LABEL + PAD)));
  }
  function drawAxis(pen) {
    const rough = (to - from) / Math.max(2, Math.floor(wide / 110));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    pen.strokeStyle = colour("line"); pen.fillStyle = colour("dim"); pen.lineWidth = 1;
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = Math.round(xOf(time)) + 0.5;
      pen.beginPath(); pen.moveTo(x, AXIS - 6); pen.lineTo(x, height); pen.stroke();
      const text = timeText(time);
      pen.fillText(text, Math.min(Math.max(0, x - 4), wide - pen.measureText(text).width), 8);
    }
  }
  function drawRow(pen, row, top) {
    const basis = row.pass.recorded ? row.pass.slowed ? ", gaps longer than in a plain run: the recorder ran" : "" : row.pass.timed ? ": put end to end, gaps not known" : ": times not known, one width each";
    pen.fillStyle = colour("ink"); pen.fillText(row.pass.name, 0, top + 9);
    const after = pen.measureText(`${row.pass.name}  `).width;
    pen.fillStyle = colour("dim"); pen.fillText(`${timeText(row.end)}${row.pass.timed ? "" : " (drawn)"}, ${countText(row.pass.kernels)} kernels${basis}`, after, top + 9);
    const y = top + LABEL;
    pen.fillStyle = colour("sunk"); pen.fillRect(Math.max(0, xOf(0)), y, Math.min(wide, xOf(row.end)) - Math.max(0, xOf(0)), ROW);
    let painted = -1;
    for (let i = firstFrom(row, from); i < row.start.length && row.start[i] <= to; i++) {
      const x = xOf(row.start[i]), end = xOf(row.start[i] + row.width[i]);
      if (end < painted + 0.4 && i !== chosen?.index) continue; // under half a pixel beyond what is painted
      const kind = KINDS[row.pass.kind[i]];
      const left = Math.max(0, x), right = Math.min(wide, Math.max(end, x + 0.6));
      pen.fillStyle = colour(colourOf(kind));
      pen.fillRect(left, y, Math.max(0.6, right - left - (right - left > 3 ? 0.7 : 0)), ROW);
      painted = right;
      if (right - left > 46) {
        const text = kind.ops || kind.label, room = right - left - 8;
        const most = Math.floor(room / 6.2);
        pen.fillStyle = choice.value === "finding" && !kind.findings.length ? colour("dim") : colour("panel");
        if (most > 3) pen.fillText(cut(text, most), left + 4, y + ROW / 2);
      }
    }
    if (chosen && chosen.row === row) {
      pen.strokeStyle = colour("ink"); pen.lineWidth = 2;
      const x = xOf(row.start[chosen.index]);
      pen.strokeRect(x, y, Math.max(2, xOf(row.start[chosen.index] + row.width[chosen.index]) - x), ROW);
    }
  }

  function hit(x, y) {
    const number = Math.floor((y - AXIS) / (ROW + LABEL + PAD));
    const row = rows[number];
    if (!row || y - AXIS - number * (ROW + LABEL + PAD) < LABEL) return null;
    const time = from + x / wide * (to - from), slack = (to - from) / wide * 1.5;
    let best = null;
    for (let i = firstFrom(row, time - slack); i < row.start.length && row.start[i] <= time + slack; i++) {
      const off = Math.max(row.start[i] - time, time - row.start[i] - row.width[i], 0);
      if (best === null || off <= best.off) best = { off, index: i, row };
    }
    return best || { row, gap: true };
  }

  let waiting = false;
  function redraw() { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } }
  function view(a, b) {
    const size = Math.min(span, Math.max(b - a, Math.min(span, 200)));
    from = Math.min(Math.max(0, a), span - size); to = from + size;
    redraw();
  }
  function zoom(factor, centre = (from + to) / 2) { view(centre - (centre - from) * factor, centre + (to - centre) * factor); }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, from, to }; canvas.setPointerCapture(event.pointerId); canvas.classList.add("drag"); hideTip(); });
  canvas.addEventListener("pointerup", (event) => {
    canvas.classList.remove("drag");
    if (drag && Math.abs(event.offsetX - drag.x) < 3) { const found = hit(event.offsetX, event.offsetY); if (found && !found.gap) choose(found.row, found.index); }
    drag = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) { const shift = (drag.x - event.offsetX) / wide * (drag.to - drag.from); view(drag.from + shift, drag.to + shift); return; }
    const found = hit(event.offsetX, event.offsetY);
    if (!found || found.gap) { hideTip(); return; }
    const { row, index } = found;
    const idle = index ? row.start[index] - row.reach[index - 1] : 0;
    showTip(KINDS[row.pass.kind[index]], event.clientX, event.clientY, [`at ${timeText(row.start[index])}${row.pass.recorded && idle > 0 ? `, after ${timeText(idle)} idle` : ""}`]);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("wheel", (event) => {
    // A plain wheel scrolls the page until the reader has zoomed in or holds a key: the page must not trap the wheel.
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, from + event.offsetX / wide * (to - from));
  }, { passive: false });

  function choose(row, index) {
    chosen = { row, index };
    const start = row.start[index], size = Math.max(row.width[index], 1);
    if (start < from || start + size > to) view(start - (to - from) / 2, start + (to - from) / 2);
    const kind = KINDS[row.pass.kind[index]];
    live.textContent = `${spoken(kind)}, at ${timeText(start)}`;
    redraw();
  }
  canvas.addEventListener("keydown", (event) => {
    const move = (to - from) / 8;
    const actions = {
      "+": () => zoom(1 / 1.5), "=": () => zoom(1 / 1.5), "-": () => zoom(1.5), 0: () => view(0, span),
      ArrowLeft: () => view(from - move, to - move), ArrowRight: () => view(from + move, to + move),
      n: () => step(1), p: () => step(-1), Escape: () => { chosen = null; live.textContent = ""; hideTip(); redraw(); },
    };
    if (actions[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); actions[event.key](); }
  });
  function step(by) {
    if (!rows.length) return;
    if (!chosen) { choose(rows[0], firstFrom(rows[0], from)); return; }
    let number = rows.indexOf(chosen.row), index = chosen.index + by;
    if (index < 0) { number -= 1; index = rows[number] ? rows[number].start.length - 1 : 0; } else if (index >= chosen.row.start.length) { number += 1; index = 0; }
    if (rows[number]) choose(rows[number], index);
  }
  document.getElementById("zoom-in").addEventListener("click", () => zoom(1 / 2));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(2));
  document.getElementById("zoom-all").addEventListener("click", () => view(0, span));

  function legend() {
    const entries = choice.value === "finding" ? [["save", "named by a finding"], ["line", "not named"]]
      : choice.value === "graph" ? [...groupNames].slice(0, 16).map(([name, number]) => [GROUP_COLOURS[number % GROUP_COLOURS.length], name])
        : [...new Set(KINDS.map(familyOf))].map((name) => [`c-${name}`, FAMILY_LABELS[name]]);
    document.getElementById("timeline-legend").replaceChildren(...entries.map(([name, text]) => {
      const key = make("i"); key.style.background = `var(--${name})`;
      return make("span", {}, key, text);
    }));
  }
  choice.addEventListener("change", () => { legend(); redraw(); });
  canvas.setAttribute("aria-label", rows.map((row) => `${row.pass.name}: ${row.pass.kernels} kernels in ${timeText(row.end)}`).join("; "));
  if (rows.length) { legend(); draw(); redraws.push(draw); new ResizeObserver(redraw).observe(canvas.parentElement); } else { document.getElementById("timeline").hidden = true; }
}
