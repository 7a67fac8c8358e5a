// Bytes of a launch against the bandwidth it reached; both axes logarithmic, lines of equal time, roofs of the GPU.
{
  const holder = document.getElementById("plot");
  const note = document.getElementById("plot-note");
  const MOST = 600; // dots; more make hovering slow and the picture no clearer
  const LEAST = 1024; // bytes: fills of a counter would stretch both axes and say nothing
  const usable = KINDS.filter((kind) => kind.rate && kind.bytesEach >= LEAST);
  const shown = [...usable].sort((a, b) => b.time - a.time).slice(0, MOST);
  let dots = [], at = -1;

  const ticks = (low, high) => { const out = []; for (let power = Math.ceil(low); power <= high; power++) out.push(power); return out; };

  function draw() {
    const width = Math.max(340, holder.clientWidth || 800), height = width < 600 ? 300 : 380;
    const left = 58, right = 14, top = 14, bottom = 34;
    const roof = DATA.target.peak;
    const xs = shown.map((kind) => Math.log10(kind.bytesEach)), ys = shown.map((kind) => Math.log10(kind.rate));
    const x0 = Math.floor(Math.min(...xs)), x1 = Math.ceil(Math.max(...xs) + 0.05);
    const y0 = Math.floor(Math.min(...ys)), y1 = Math.max(Math.max(...ys), roof ? Math.log10(roof) : 0) + 0.25;
    const X = (value) => left + (value - x0) / (x1 - x0) * (width - left - right);
    const Y = (value) => height - bottom - (value - y0) / (y1 - y0) * (height - top - bottom);
    const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${shown.length} kinds of kernel by bytes and bandwidth` });
    for (const power of ticks(x0, x1)) {
      picture.append(shape("line", { class: "grid", x1: X(power), x2: X(power), y1: top, y2: height - bottom }));
      picture.append(shape("text", { x: X(power), y: height - bottom + 15, "text-anchor": X(power) > width - 40 ? "end" : "middle" }, bytesText(10 ** power)));
    }
    for (const power of ticks(y0, y1)) {
      picture.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: Y(power), y2: Y(power) }));
      picture.append(shape("text", { x: left - 6, y: Y(power) + 4, "text-anchor": "end" }, rateText(10 ** power)));
    }
    picture.append(shape("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "bytes of one launch"));
    // bandwidth = bytes / time: lines of one time rise with slope 1.
    for (const [nanoseconds, text] of [[1e3, "1 us"], [1e4, "10 us"], [1e5, "100 us"], [1e6, "1 ms"], [1e7, "10 ms"]]) {
      const shift = 9 - Math.log10(nanoseconds);
      const a = Math.max(x0, y0 - shift), b = Math.min(x1, y1 - shift);
      if (b - a < 0.3) continue;
      picture.append(shape("line", { class: "iso", x1: X(a), y1: Y(a + shift), x2: X(b), y2: Y(b + shift) }));
      picture.append(shape("text", { class: "label", x: X(a) + 4, y: Y(a + shift) - 4 - (a === x0 ? 0 : 6) }, text));
    }
    const roofs = [[roof, "roof", "peak"], [DATA.target.attainable, "reach", "a plain copy reaches"]];
    roofs.forEach(([value, name, text], index) => {
      if (!value) return;
      const y = Y(Math.log10(value));
      picture.append(shape("line", { class: name, x1: left, x2: width - right, y1: y, y2: y }));
      picture.append(shape("text", { class: "label", x: left + 6, y: index ? y + 14 : y - 5 }, `${text} ${rateText(value)}`));
    });
    const most = Math.max(...shown.map((kind) => kind.time));
    dots = shown.map((kind, index) => {
      const size = 3 + 11 * Math.sqrt(kind.time / most), x = X(xs[index]), y = Y(ys[index]);
      const paint = { class: "dot", "data-index": index };
      const dot = kind.pass === 0 ? shape("circle", { ...paint, cx: x, cy: y, r: size })
        : kind.pass === 1 ? shape("rect", { ...paint, x: x - size * 0.88, y: y - size * 0.88, width: size * 1.76, height: size * 1.76 })
          : shape("path", { ...paint, d: `M${x} ${y - size * 1.2}L${x + size * 1.2} ${y}L${x} ${y + size * 1.2}L${x - size * 1.2} ${y}z` });
      dot.style.fill = dot.style.stroke = `var(--c-${familyOf(kind)})`; // follows the theme by itself
      return dot;
    });
    picture.append(...dots);
    holder.replaceChildren(picture);
  }

  function mark(index, say) {
    if (dots[at]) dots[at].classList.remove("on");
    at = index;
    if (!dots[at]) return;
    dots[at].classList.add("on");
    if (say) {
      const box = dots[at].getBoundingClientRect();
      showTip(shown[at], box.right, box.top);
      document.getElementById("plot-live").textContent = spoken(shown[at]);
    }
  }
  holder.addEventListener("pointermove", (event) => {
    const index = event.target.dataset ? event.target.dataset.index : undefined;
    if (index === undefined) { mark(-1, false); hideTip(); return; }
    if (Number(index) !== at) mark(Number(index), false);
    showTip(shown[at], event.clientX, event.clientY);
  });
  holder.addEventListener("pointerleave", () => { mark(-1, false); hideTip(); });
  holder.addEventListener("click", (event) => { const index = event.target.dataset ? event.target.dataset.index : undefined; if (index !== undefined) showInTable(shown[Number(index)]); });
  holder.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); mark((at + by + dots.length) % dots.length, true); }
    if (event.key === "Enter" && shown[at]) showInTable(shown[at]);
    if (event.key === "Escape") { mark(-1, false); hideTip(); }
  });
  holder.addEventListener("blur", hideTip);

  if (shown.length) {
    const without = KINDS.filter((kind) => !kind.rate && kind.bytesEach !== 0).length;
    const tiny = KINDS.length - usable.length - without;
    note.textContent = "Times measured, bytes modelled. Area: time in the step."
      + (usable.length > shown.length ? ` The ${countText(shown.length)} kinds that take longest are drawn, of ${countText(usable.length)}.` : "")
      + (without ? ` ${countText(without)} kinds without bytes or time are not drawn.` : "")
      + (tiny ? ` Nor are ${countText(tiny)} that move less than 1 kB.` : "");
    const shapes = DATA.passes.slice(0, 3).map((pass, index) => make("span", {}, make("i", { class: index ? "hollow" : "hollow round" }), pass.name));
    const families = [...new Set(shown.map(familyOf))].map((name) => { const key = make("i"); key.style.background = `var(--c-${name})`; return make("span", {}, key, FAMILY_LABELS[name]); });
    document.getElementById("plot-legend").replaceChildren(...(DATA.passes.length > 1 ? shapes : []), ...families);
    let known = holder.clientWidth;
    draw();
    new ResizeObserver(() => { if (Math.abs(holder.clientWidth - known) > 8) { known = holder.clientWidth; draw(); } }).observe(holder);
  } else {
    holder.removeAttribute("tabindex");
    note.textContent = DATA.passes.some((pass) => pass.basis === "measured") ? "No kernel has both bytes and a time."
      : "No GPU ran this: a bandwidth from predicted times would only repeat the model.";
  }
}
