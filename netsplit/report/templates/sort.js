document.querySelectorAll("table").forEach(function (table) {
  var body = table.tBodies[0], heads = Array.from(table.tHead.rows[0].cells);
  function value(row, column) {
    var text = row.cells[column].textContent.trim().replace(/[,\u2605]/g, "").replace("\u2212", "-");
    var number = parseFloat(text);
    return isNaN(number) ? text : number;
  }
  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return typeof a === typeof b ? a.localeCompare(b) : typeof a === "number" ? -1 : 1;
  }
  heads.forEach(function (head, column) {
    function sort() {
      var sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      var rows = Array.from(body.rows);
      rows.sort(function (a, b) { return sign * compare(value(a, column), value(b, column)); });
      heads.forEach(function (each) { each.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append.apply(body, rows);
    }
    head.setAttribute("data-sort", "");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", function (event) { if (event.key === "Enter") sort(); });
  });
});
