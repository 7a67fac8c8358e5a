// The kernel table: one row a kind of kernel; sorted and searched in memory, drawn a page at a time.
const PAGE = 40;
let showInTable = () => {};
{
  const table = document.getElementById("kernel-table");
  const body = table.tBodies[0];
  const search = document.getElementById("search"), passes = document.getElementById("filter-pass"), categories = document.getElementById("filter-category");
  const more = document.getElementById("more");
  const several = DATA.passes.length > 1;
  const bases = [...new Set(DATA.passes.map((pass) => pass.basis).filter(Boolean))];
  const columns = [
    { key: "order", label: "#", number: true, value: (kind) => kind.index, text: (kind) => String(kind.id) },
    ...(several ? [{ key: "pass", label: "pass", value: (kind) => kind.pass, text: (kind) => kind.passName }] : []),
    { key: "name", label: "kernel", class: "name", value: (kind) => kind.label.toLowerCase(), text: (kind) => kind.label },
    { key: "ops", label: "ops", class: "ops wide", wide: true, value: (kind) => kind.ops, text: (kind) => kind.ops },
    { key: "tensors", label: "tensors", class: "tensors wide", wide: true, value: (kind) => kind.tensors, text: (kind) => kind.tensors },
    { key: "place", label: "line", class: "where", value: (kind) => kind.place, text: (kind) => kind.place },
    { key: "count", label: "launches", number: true, value: (kind) => kind.count, text: (kind) => countText(kind.count) },
    { key: "time", label: `time${bases.length === 1 ? ` (${bases[0]})` : ""}`, number: true, value: (kind) => kind.time, text: (kind) => timeText(kind.time) },
    { key: "bytes", label: "bytes (modelled)", number: true, value: (kind) => kind.bytes, text: (kind) => kind.bytes === 0 ? "-" : bytesText(kind.bytes) },
    { key: "rate", label: DATA.target.peak ? "of peak" : "bandwidth", number: true, value: (kind) => kind.rate, text: (kind) => kind.rate === null ? "-" : DATA.target.peak ? `${Math.round(kind.rate / DATA.target.peak * 100)}%` : rateText(kind.rate) },
    { key: "registers", label: "regs", number: true, value: (kind) => kind.registers, text: (kind) => countText(kind.registers) },
    { key: "local", label: "local", number: true, value: (kind) => kind.local, text: (kind) => kind.local === 0 ? "0" : bytesText(kind.local) },
    { key: "occupancy", label: "occup.", number: true, value: (kind) => kind.occupancy, text: (kind) => kind.occupancy === null ? "-" : `${Math.round(kind.occupancy * 100)}%` },
  ];
  for (const kind of KINDS) kind.hay = [kind.name, kind.label, kind.ops, kind.tensors, kind.place, kind.category, kind.graph, kind.phase].join("\n").toLowerCase();
  // Ops and tensors have no column on a phone: a row's detail has them.
  const classOf = (column) => column.number ? "num" : column.wide ? "wide" : "";
  let sorted = { column: columns[0], down: false }, rows = KINDS, limit = PAGE;

  const head = make("tr");
  for (const column of columns) {
    const button = make("button", { type: "button", text: column.label });
    button.addEventListener("click", () => {
      // Figures are first sorted from the largest, texts and the order from the start.
      sorted = sorted.column === column ? { column, down: !sorted.down } : { column, down: Boolean(column.number) && column.key !== "order" };
      limit = PAGE; apply();
    });
    column.head = make("th", { scope: "col", class: classOf(column) }, button);
    head.append(column.head);
  }
  table.tHead.append(head);

  function compare(a, b) {
    const x = a.sortKey, y = b.sortKey;
    if (x === y) return a.index - b.index;
    if (x === null) return 1; // unknown comes last, whichever way
    if (y === null) return -1;
    return (x < y ? -1 : 1) * (sorted.down ? -1 : 1);
  }
  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows = KINDS.filter((kind) => (!passes.value || kind.passName === passes.value) && (!categories.value || familyOf(kind) === categories.value) && words.every((word) => kind.hay.includes(word)));
    for (const kind of rows) kind.sortKey = sorted.column.value(kind);
    rows.sort(compare);
    for (const column of columns) {
      if (column === sorted.column) column.head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending"); else column.head.removeAttribute("aria-sort");
    }
    draw();
  }
  function draw() {
    body.replaceChildren(...rows.slice(0, limit).map(rowOf));
    if (!rows.length) body.append(make("tr", {}, make("td", { class: "empty", colspan: columns.length, text: "No kernel matches." })));
    more.hidden = rows.length <= limit;
    more.textContent = `Show more (${countText(rows.length - limit)} rows left)`;
    const launches = rows.reduce((sum, kind) => sum + kind.count, 0);
    document.getElementById("kernel-count").textContent = `${countText(launches)} launches per step, ${countText(rows.length)} ${rows.length === 1 ? "row" : "rows"}`;
    total();
  }
  function sum(key) { let all = 0; for (const kind of rows) { if (kind[key] === null) return null; all += kind[key]; } return all; }
  function total() {
    const line = make("tr");
    for (const column of columns) {
      const text = column.key === "name" ? "all rows shown and left" : column.key === "count" ? countText(sum("count")) : column.key === "time" ? timeText(sum("time")) : column.key === "bytes" ? bytesText(sum("bytes")) : "";
      line.append(make("td", { class: classOf(column), text }));
    }
    // Adding up eager and compiled would say nothing.
    const mixed = several && new Set(rows.map((kind) => kind.pass)).size > 1;
    table.tFoot.replaceChildren(...(mixed || !rows.length ? [] : [line]));
  }
  function rowOf(kind) {
    const row = make("tr", { "data-kind": kind.index });
    for (const column of columns) {
      const cell = make("td", { class: [column.class, column.number ? "num" : ""].filter(Boolean).join(" ") });
      const text = column.text(kind);
      if (column.key === "name") {
        const swatch = make("span", { class: "swatch" }); swatch.style.background = `var(--c-${familyOf(kind)})`;
        cell.append(make("div", {}, swatch, make("button", { type: "button", "aria-expanded": "false", title: cut(kind.name, 600), text: cut(text, 88) })));
      } else cell.textContent = text;
      row.append(cell);
    }
    return row;
  }
  function detailOf(kind) {
    const facts = [
      ["name", kind.name], ["kind", kind.category], ["ops", kind.ops], ["reads", kind.reads], ["writes", kind.writes], ["line", kind.place], ["graph", kind.graph], ["phase", kind.phase],
      ["one launch", `${timeText(kind.timeEach)}, ${bytesText(kind.bytesEach)}${kind.rate === null ? "" : `, ${rateText(kind.rate)}`}`],
      ["grid", kind.grid], ["block", kind.block], ["shared", kind.shared === null ? "" : bytesText(kind.shared)],
    ];
    const list = make("dl");
    for (const [label, text] of facts) if (text) list.append(make("dt", { text: label }), make("dd", { text }));
    if (kind.findings.length) {
      const links = make("dd");
      kind.findings.slice(0, 20).forEach((number) => links.append(make("a", { href: `#finding-${number}`, text: `finding ${number + 1}` }), " "));
      list.append(make("dt", { text: "findings" }), links);
    }
    return make("tr", { class: "detail" }, make("td", { colspan: columns.length }, list));
  }
  function toggle(row) {
    const open = row.nextElementSibling && row.nextElementSibling.classList.contains("detail");
    row.querySelector(".name button").setAttribute("aria-expanded", String(!open));
    if (open) row.nextElementSibling.remove(); else row.after(detailOf(KINDS[Number(row.dataset.kind)]));
  }
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-kind]");
    if (row && !String(getSelection())) toggle(row);
  });
  for (const control of [search, passes, categories]) control.addEventListener("input", () => { limit = PAGE; apply(); });
  more.addEventListener("click", () => { limit += PAGE * 4; draw(); });

  async function copy() {
    const text = [columns.map((column) => column.label), ...rows.map((kind) => columns.map((column) => column.key === "name" ? kind.name : column.key === "tensors" || column.key === "rate" ? column.text(kind) : String(column.key === "order" ? kind.id : column.key === "pass" ? kind.passName : column.value(kind) ?? "")))].map((line) => line.map((cell) => cell.replaceAll(/[\t\n]/g, " ")).join("\t")).join("\n");
    try { await navigator.clipboard.writeText(text); } catch {
      const area = make("textarea"); area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    document.getElementById("copy-live").textContent = `${countText(rows.length)} rows copied, tab-separated, times in ns`;
  }
  document.getElementById("copy").addEventListener("click", copy);
  showInTable = (kind) => {
    search.value = kind.name.slice(0, 200).toLowerCase(); passes.value = several ? kind.passName : ""; categories.value = ""; limit = PAGE; apply();
    document.getElementById("kernels").scrollIntoView();
  };

  for (const pass of DATA.passes) passes.append(make("option", { value: pass.name, text: pass.name }));
  for (const name of new Set(KINDS.map(familyOf))) categories.append(make("option", { value: name, text: FAMILY_LABELS[name] }));
  if (!several) passes.parentElement.hidden = true;
  document.getElementById("cuts").textContent = DATA.cuts.join(". ") + (DATA.cuts.length ? ". All of it is in audit.db." : "");
  apply();
}
