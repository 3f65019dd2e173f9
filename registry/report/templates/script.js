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
      return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
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
      header.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(column); });
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
  const place = (event) => {
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - 12 - box.height : event.clientY + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  let current = null;
  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest ? event.target.closest(".band rect") : null;
    if (target !== current) {
      current = target;
      tip.hidden = target === null;
      if (target) fill(target);
    }
    if (target) place(event);
  });
  document.addEventListener("scroll", () => { tip.hidden = true; current = null; }, { passive: true });
})();
