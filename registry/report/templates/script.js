"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
  name();

  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = [...table.tHead.rows[0].cells];
    const key = (row, column) => {
      const cell = row.cells[column];
      if (!cell) return null;
      if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
      const text = cell.textContent.trim();
      if (text === "–" || text === "" || text === "noise") return null;
      const number = Number(text.replaceAll(",", ""));
      return Number.isNaN(number) ? text : number;
    };
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    };
    const sort = (column) => {
      const header = headers[column];
      const down = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(key(a, column), key(b, column)));
      body.append(...rows);
    };
    headers.forEach((header, column) => {
      header.tabIndex = 0;
      header.addEventListener("click", () => sort(column));
      header.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        sort(column);
      });
    });
  }

  for (const legend of document.querySelectorAll(".legend")) {
    const lines = [...document.getElementById(legend.dataset.for).querySelectorAll(".charts .line")];
    for (const toggle of legend.querySelectorAll("button")) {
      toggle.addEventListener("click", () => {
        const shown = toggle.getAttribute("aria-pressed") !== "true";
        toggle.setAttribute("aria-pressed", String(shown));
        lines.filter((line) => line.dataset.series === toggle.dataset.series).forEach((line) => line.classList.toggle("off", !shown));
      });
    }
  }

  for (const group of document.querySelectorAll(".kinds")) {
    const rows = [...document.getElementById(group.dataset.for).tBodies[0].rows];
    for (const toggle of group.querySelectorAll("button")) {
      const show = (shown) => {
        toggle.setAttribute("aria-pressed", String(shown));
        rows.filter((row) => row.dataset.kind === toggle.dataset.kind).forEach((row) => { row.hidden = !shown; });
      };
      toggle.addEventListener("click", () => show(toggle.getAttribute("aria-pressed") !== "true"));
      show(toggle.dataset.kind !== "same");
    }
  }

  const tip = document.getElementById("tip");
  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const fill = (target) => {
    const table = document.createElement("table");
    for (const line of target.dataset.lines.split("\n").filter(Boolean)) {
      const [series, label, value, detail] = line.split("\t");
      const row = table.insertRow();
      const first = element("td", "", series);
      first.append(element("b", "", "swatch"), label);
      row.append(first, element("td", value, "r"), element("td", detail || ""));
    }
    tip.replaceChildren(element("strong", target.dataset.title), table);
  };
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    const top = y + 16 + box.height > innerHeight ? y - 12 - box.height : y + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  let current = null;
  const show = (target) => {
    if (target === current) return;
    if (current) current.classList.remove("shown");
    current = target;
    tip.hidden = target === null;
    if (target) { target.classList.add("shown"); fill(target); }
  };
  const point = (event) => {
    const target = event.target.closest ? event.target.closest(".read") : null;
    show(target);
    if (target) place(event.clientX, event.clientY);
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("scroll", () => show(null), { passive: true });

  const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
  for (const chart of document.querySelectorAll(".chart svg")) {
    const all = [...chart.querySelectorAll(".read")];
    let at = -1;
    chart.addEventListener("keydown", (event) => {
      const last = all.length - 1;
      if (event.key === "Escape") { show(null); return; }
      if (event.key === "Home") at = 0;
      else if (event.key === "End") at = last;
      else if (event.key in STEPS) at = Math.min(Math.max(at + STEPS[event.key], 0), last);
      else return;
      event.preventDefault();
      if (last < 0) return;
      show(all[at]);
      const box = all[at].getBoundingClientRect();
      place(box.left + box.width / 2, box.top + Math.min(box.height / 2, 60));
    });
    chart.addEventListener("blur", () => show(null));
  }
})();
