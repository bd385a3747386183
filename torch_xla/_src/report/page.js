"use strict";
(() => {
// Tables: a click on a title sorts.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((th, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    th.append(button);
    button.onclick = () => {
      const letters = th.classList.contains("name") || th.classList.contains("text");
      const down = th.getAttribute("aria-sort") ? th.getAttribute("aria-sort") === "ascending"
                                                : !letters;
      for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => row.cells[column].dataset.v;
      const compare = letters ? (a, b) => value(a).localeCompare(value(b))
                              : (a, b) => value(a) - value(b);
      const shown = [...body.rows].filter(row => !row.classList.contains("more")).length;
      const rows = [...body.rows].sort((a, b) => down ? compare(b, a) : compare(a, b));
      rows.forEach((row, i) => row.classList.toggle("more", i >= shown));
      body.append(...rows);
    };
  });
}
})();
