// Everything of candidates is put on the page with textContent, as text.
(function () {
  const byId = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // ------------------------------------------------------------------------------------------------------ artifacts
  const files = JSON.parse(byId("artifact-data").textContent);
  const picks = { left: byId("pick-left"), right: byId("pick-right") };
  const CONTEXT_LINES = 3;
  let mode = "sides";

  const showSize = (size) => {
    let unit = 0;
    while (size >= 1024 && unit < 3) {
      size /= 1024;
      unit++;
    }
    return `${unit === 0 || size >= 100 ? size.toFixed(0) : size.toFixed(1)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
  };

  function fillPicker(select) {
    const groups = new Map();
    files.forEach((file, number) => {
      const label = file.rounds > 1 ? `${file.name} · round ${file.round}` : file.name;
      const key = `${file.candidate} ${file.round}`;
      if (!groups.has(key)) {
        const group = document.createElement("optgroup");
        group.label = label;
        groups.set(key, group);
      }
      const option = make("option", "", `${label} – ${file.path}`);
      option.value = String(number);
      groups.get(key).append(option);
    });
    select.append(...groups.values());
  }

  function showFile(side) {
    const file = files[Number(picks[side].value)];
    const info = byId(`info-${side}`);
    const shown = byId(`show-${side}`);
    const said = make("span", "", showSize(file.size));
    const hash = make("code", "hash", file.sha256.slice(0, 16));
    hash.title = file.sha256;
    info.replaceChildren(said, hash);
    if (file.note) info.append(make("span", "note", file.note));
    if (file.kind === "image") {
      const image = document.createElement("img");
      image.alt = `${file.path} of ${file.name}`;
      image.src = file.image;
      shown.replaceChildren(image);
    } else {
      const text = make("pre", file.kind, file.text);
      text.tabIndex = 0;
      shown.replaceChildren(text);
    }
  }

  function showDiff() {
    const [left, right] = [files[Number(picks.left.value)], files[Number(picks.right.value)]];
    const box = byId("diff");
    const said = byId("diff-said");
    if (left.kind !== "text" || right.kind !== "text") {
      const same = left.sha256 === right.sha256;
      said.textContent = same ? "identical" : "different";
      box.replaceChildren(make("p", "remark", same ? "Both files are identical." : "Only text is compared line by line. By their hashes, these two files differ."));
      return;
    }
    const lines = diffLines(left.text, right.text);
    if (lines === null) {
      said.textContent = "too different";
      box.replaceChildren(make("p", "remark", "The two files have too little in common for a line-by-line comparison."));
      return;
    }
    const added = lines.filter((line) => line.op === "+").length;
    const removed = lines.filter((line) => line.op === "-").length;
    const cut = left.note || right.note ? " in the parts that are in this page" : "";
    said.textContent = added + removed === 0 ? `no difference${cut}` : `${removed} removed, ${added} added${cut}`;
    const table = make("table", "lines");
    const body = document.createElement("tbody");
    table.append(body);
    foldLines(lines).forEach((line) => body.append(line.fold ? makeFold(line.fold) : makeLine(line)));
    box.replaceChildren(table);
  }

  function foldLines(lines) {
    const near = new Uint8Array(lines.length);
    lines.forEach((line, at) => {
      if (line.op === " ") return;
      for (let i = Math.max(0, at - CONTEXT_LINES); i <= Math.min(lines.length - 1, at + CONTEXT_LINES); i++) near[i] = 1;
    });
    const found = [];
    for (let at = 0; at < lines.length; at++) {
      if (near[at]) {
        found.push(lines[at]);
        continue;
      }
      const start = at;
      while (at + 1 < lines.length && !near[at + 1]) at++;
      found.push({ fold: lines.slice(start, at + 1) });
    }
    return found;
  }

  function makeLine(line) {
    const kind = { "+": "added", "-": "removed", " ": "same" }[line.op];
    const row = make("tr", kind);
    row.append(make("td", "at", line.left || ""), make("td", "at", line.right || ""), make("td", "op", line.op), make("td", "text", line.text));
    return row;
  }

  function makeFold(lines) {
    const row = make("tr", "fold");
    const cell = document.createElement("td");
    cell.colSpan = 4;
    const button = make("button", "", `${lines.length} equal line${lines.length === 1 ? "" : "s"}`);
    button.type = "button";
    button.addEventListener("click", () => row.replaceWith(...lines.map(makeLine)));
    cell.append(button);
    row.append(cell);
    return row;
  }

  function show() {
    showFile("left");
    showFile("right");
    const differ = mode === "diff";
    byId("diff").hidden = !differ;
    byId("viewer").classList.toggle("differ", differ);
    byId("mode-sides").setAttribute("aria-pressed", String(!differ));
    byId("mode-diff").setAttribute("aria-pressed", String(differ));
    if (differ) showDiff();
    else byId("diff-said").textContent = "";
  }

  if (files.length === 0) {
    byId("no-artifacts").hidden = false;
  } else {
    byId("viewer").hidden = false;
    for (const side of ["left", "right"]) {
      fillPicker(picks[side]);
      picks[side].addEventListener("change", show);
    }
    const other = files.findIndex((file) => file.candidate !== files[0].candidate);
    picks.right.value = String(other < 0 ? Math.min(1, files.length - 1) : other);
    for (const name of ["sides", "diff"]) {
      byId(`mode-${name}`).addEventListener("click", () => {
        mode = name;
        show();
      });
    }
    byId("wrap").addEventListener("change", (event) => byId("viewer").classList.toggle("nowrap", !event.target.checked));
    show();
  }

  // ----------------------------------------------------------------------------------------------------------- logs
  const MAX_HITS = 1000;
  const logs = [...document.querySelectorAll("[data-log]")].map((element) => {
    const pre = element.querySelector("pre");
    return { element, pre, hits: element.querySelector("[data-hits]"), text: pre ? pre.textContent : "", opened: false };
  });

  function search(wanted) {
    let lines = 0;
    let where = 0;
    for (const log of logs) {
      if (!log.pre) {
        log.element.classList.toggle("missed", wanted !== "");
        continue;
      }
      const found = wanted ? findLines(log.text, wanted) : null;
      log.hits.textContent = found && found.count ? `${found.count} line${found.count === 1 ? "" : "s"}` : "";
      log.element.classList.toggle("missed", found !== null && found.count === 0);
      if (found === null) {
        log.pre.textContent = log.text;
        log.element.open = log.opened;
      } else {
        log.pre.replaceChildren(...found.nodes);
        log.element.open = found.count > 0;
        lines += found.count;
        where += found.count > 0 ? 1 : 0;
      }
    }
    byId("log-said").textContent = wanted ? (lines ? `${lines} line${lines === 1 ? "" : "s"} in ${where} log${where === 1 ? "" : "s"}` : "nothing found") : "";
  }

  function findLines(text, wanted) {
    const needle = wanted.toLowerCase();
    const nodes = [];
    let count = 0;
    text.split("\n").forEach((line, number) => {
      const lower = line.toLowerCase();
      let at = lower.indexOf(needle);
      if (at < 0) return;
      count++;
      if (count > MAX_HITS) return;
      nodes.push(make("span", "line-number", String(number + 1).padStart(5) + "  "));
      let from = 0;
      // A letter whose small form is longer would move the marks: then the line is shown without them.
      while (at >= 0 && lower.length === line.length) {
        nodes.push(document.createTextNode(line.slice(from, at)), make("mark", "", line.slice(at, at + needle.length)));
        from = at + needle.length;
        at = lower.indexOf(needle, from);
      }
      nodes.push(document.createTextNode(line.slice(from) + "\n"));
    });
    if (count > MAX_HITS) nodes.push(document.createTextNode(`… and ${count - MAX_HITS} more lines\n`));
    return { count, nodes };
  }

  if (logs.length > 0) {
    byId("log-tools").hidden = false;
    const input = byId("log-search");
    let timer = 0;
    let searching = false;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        if (!searching) logs.forEach((log) => (log.opened = log.element.open));
        searching = input.value !== "";
        search(input.value);
      }, 120);
    });
    const openAll = (open) => logs.forEach((log) => (log.element.open = open));
    byId("log-open").addEventListener("click", () => openAll(true));
    byId("log-close").addEventListener("click", () => openAll(false));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
      event.preventDefault();
      input.focus();
    });
  }

  // ------------------------------------------------------------------------------------- rows, points and candidates
  const light = (id, on) => {
    for (const element of document.querySelectorAll(`[data-candidate="${CSS.escape(id)}"]`)) element.classList.toggle("lit", on);
  };
  for (const element of document.querySelectorAll("[data-candidate]")) {
    const id = element.dataset.candidate;
    element.addEventListener("mouseenter", () => light(id, true));
    element.addEventListener("mouseleave", () => light(id, false));
  }
  const openTarget = () => {
    const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();
  // On paper a fold can't be opened.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open]):not([data-log])")];
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
  });
})();
