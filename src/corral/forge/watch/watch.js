"use strict";
// Everything of candidates is put on the page with textContent, as text. The server has cleaned it already.
(function () {
  const MAX_LOG_CHARACTERS = 24 * 1024;
  const MAX_LOG_PIECES = 400;
  const MANY_LANES = 12;
  const PHASES = { waiting: "waiting", create: "creating", place: "placing", run: "running", collect: "collecting", ended: "ended" };
  const byId = (id) => document.getElementById(id);
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // ----------------------------------------------------------------------------------------------------------- state
  let run = {};
  let state = "connecting";
  let offset = null; // our clock minus the run's
  let lastAt = 0;
  let filter = "all";
  let wanted = "";
  const lanes = new Map();
  let dirty = false;

  const now = () => performance.now() / 1000;
  const isOver = () => state !== "running" && state !== "judging";
  const runTime = () => (offset === null || isOver() ? lastAt : Math.max(lastAt, now() - offset));

  function showSeconds(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
    if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    const whole = Math.round(seconds);
    return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  }

  function showSize(size) {
    if (size === null || size === undefined) return "–";
    let unit = 0;
    while (size >= 1024 && unit < 3) {
      size /= 1024;
      unit++;
    }
    return `${unit === 0 || size >= 100 ? size.toFixed(0) : size.toFixed(1)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
  }

  const median = (values) => {
    const sorted = values.filter((value) => typeof value === "number").sort((a, b) => a - b);
    if (sorted.length === 0) return null;
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  };

  // ----------------------------------------------------------------------------------------------------------- lanes
  class Lane {
    constructor(data) {
      Object.assign(this, { id: data.id, name: data.name, phase: "waiting", round: 1, begunAt: null, meter: {}, standing: null });
      this.attempts = new Map();
      this.pieces = [];
      this.characters = 0;
      this.build(data);
    }

    build(data) {
      this.root = make("article", "lane");
      this.root.dataset.lane = data.id;
      this.root.id = `lane-${data.id}`;
      const head = make("header");
      const title = make("h3");
      const name = make("bdi", "", data.name);
      title.append(name);
      this.chip = make("span", "chip");
      head.append(title, this.chip);
      this.sub = make("p", "sub", data.description);
      this.sub.dir = "auto";
      this.meters = make("dl", "meters");
      this.values = {};
      for (const [key, label] of [["time", "Time"], ["cpu", "CPU"], ["memory", "Memory"], ["round", "Round"]]) {
        const pair = make("div");
        this.values[key] = make("dd", "", "–");
        pair.append(make("dt", "", label), this.values[key]);
        this.meters.append(pair);
      }
      this.log = make("pre", "log");
      this.log.tabIndex = 0;
      this.log.setAttribute("role", "log");
      this.log.setAttribute("aria-live", "off");
      this.log.setAttribute("aria-label", `Log of ${data.name}`);
      this.files = make("ul", "files");
      this.root.append(head, this.sub, this.meters, this.log, this.files);

      this.row = make("tr");
      this.row.dataset.row = data.id;
      this.cells = {};
      for (const [key, className] of [["rank", "rank"], ["who", "who"], ["total", "number total"], ["phase", ""], ["time", "number"], ["cpu", "number"], ["memory", "number"], ["outcome", ""]]) {
        this.cells[key] = make(key === "who" ? "th" : "td", className);
        this.row.append(this.cells[key]);
      }
      this.cells.who.scope = "row";
      const link = make("a");
      link.href = `#lane-${data.id}`;
      link.append(make("bdi", "", data.name));
      this.why = make("span", "sub");
      this.why.dir = "auto";
      this.cells.who.append(link, this.why);
    }

    clear() {
      this.pieces = [];
      this.characters = 0;
      this.log.replaceChildren();
    }

    append(stream, text) {
      const follow = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 24;
      const last = this.pieces[this.pieces.length - 1];
      if (last && last.stream === stream && last.element.textContent.length < 4096) {
        last.element.append(text);
        last.length += text.length;
      } else {
        const element = make("span", stream, text);
        this.pieces.push({ stream, element, length: text.length });
        this.log.append(element);
      }
      this.characters += text.length;
      while ((this.characters > MAX_LOG_CHARACTERS || this.pieces.length > MAX_LOG_PIECES) && this.pieces.length > 1) {
        const first = this.pieces.shift();
        this.characters -= first.length;
        first.element.remove();
      }
      if (follow) this.log.scrollTop = this.log.scrollHeight;
    }

    get last() {
      return this.attempts.get(Math.max(...this.attempts.keys()));
    }

    get outcome() {
      const found = [...this.attempts.values()].map((attempt) => attempt.outcome);
      return found.find((one) => one !== "ok") || found[0] || "";
    }

    get failed() {
      return this.outcome !== "" && this.outcome !== "ok";
    }

    get running() {
      return this.phase !== "waiting" && this.phase !== "ended";
    }

    get seconds() {
      if (this.standing && this.standing.seconds && this.standing.seconds.median !== undefined) return this.standing.seconds.median;
      return median([...this.attempts.values()].map((attempt) => attempt.seconds));
    }

    place() {
      if (this.standing) return this.standing.rank === null ? [5, 0] : [0, this.standing.rank];
      if (this.running) return [2, 0];
      if (this.outcome === "ok") return [1, this.seconds || 0];
      return this.failed ? [4, 0] : [3, 0];
    }

    show(mostMemory) {
      const standing = this.standing;
      const last = this.attempts.size ? this.last : null;
      this.root.dataset.phase = this.phase;
      this.root.classList.toggle("fell", this.failed);
      this.root.classList.toggle("winner", Boolean(standing && standing.rank === 1));
      setChip(this.chip, this.phase === "ended" ? this.outcome || "ended" : PHASES[this.phase] || this.phase, this.phase);
      this.values.round.textContent = run.repeat > 1 ? `${this.round} of ${run.repeat}` : "1";
      this.values.round.parentElement.hidden = !(run.repeat > 1);
      const ended = this.phase === "ended" && last;
      this.values.cpu.textContent = showSeconds(ended ? last.cpu_seconds : this.meter.cpu_seconds);
      const memory = ended ? last.peak_memory_bytes : this.meter.memory_bytes;
      this.values.memory.textContent = showSize(memory);
      this.values.memory.dataset.share = mostMemory && memory ? String(Math.ceil((10 * memory) / mostMemory)) : "0";
      this.tick();
      const why = (standing && (standing.reason || standing.failed.join(", "))) || (last && last.reason) || "";
      this.why.textContent = why;

      this.row.className = standing ? (standing.rank === 1 ? "winner" : standing.rank === null ? "out" : "ranked") : "";
      this.cells.rank.replaceChildren(make("span", "place", standing ? (standing.rank === null ? "–" : `${standing.rank}${standing.tied ? "=" : ""}`) : "·"));
      this.cells.total.textContent = standing && typeof standing.total === "number" ? standing.total.toFixed(1) : "–";
      this.cells.phase.textContent = PHASES[this.phase] || this.phase;
      this.cells.cpu.textContent = this.values.cpu.textContent;
      this.cells.memory.textContent = this.values.memory.textContent;
      const chip = make("span", "chip");
      if (this.attempts.size) {
        setChip(chip, this.outcome, "ended");
        this.cells.outcome.replaceChildren(chip);
      } else {
        this.cells.outcome.textContent = "–";
      }
      this.showFiles();
    }

    tick() {
      let seconds = this.seconds;
      if (this.phase === "run" && this.begunAt !== null && !isOver()) seconds = Math.max(0, runTime() - this.begunAt);
      else if (this.phase !== "ended") seconds = null;
      this.values.time.textContent = showSeconds(seconds);
      this.cells.time.textContent = showSeconds(seconds === null ? this.seconds : seconds);
    }

    showFiles() {
      if (this.shownFiles === this.attempts.size) return;
      this.shownFiles = this.attempts.size;
      this.files.replaceChildren();
      for (const [number, attempt] of [...this.attempts].sort((a, b) => a[0] - b[0])) {
        attempt.artifacts.forEach((file, index) => {
          const button = make("button", "", run.repeat > 1 ? `${number}: ${file.path}` : file.path);
          button.type = "button";
          button.title = showSize(file.size);
          button.addEventListener("click", () => openArtifact(this, number, index, file));
          const item = make("li");
          item.append(button);
          this.files.append(item);
        });
        if (attempt.more_artifacts) this.files.append(make("li", "sub", `and ${attempt.more_artifacts} more`));
      }
    }
  }

  function setChip(element, text, phase) {
    const kind = phase !== "ended" ? phase : text === "ok" ? "good" : ["cancelled", "infrastructure", "ended"].includes(text) ? "none" : "bad";
    element.className = `chip ${kind}`;
    element.textContent = text;
  }

  // ------------------------------------------------------------------------------------------------------- rendering
  function render() {
    dirty = false;
    byId("objective").textContent = run.objective || "";
    const ended = [...lanes.values()].reduce((sum, lane) => sum + lane.attempts.size, 0);
    const all = lanes.size * (run.repeat || 1);
    byId("state").textContent = { waiting: "waiting for the run", running: `running · ${ended} of ${all}`, judging: "judging", finished: "finished", interrupted: "interrupted", "broken off": "broken off: its process is gone" }[state] || state;
    byId("state").dataset.state = state;
    byId("facts").textContent = run.run ? [run.run, `${lanes.size} candidates`, run.repeat > 1 ? `${run.repeat} rounds` : "", `${run.jobs} at once`, `seed ${run.seed}`, run.backend].filter(Boolean).join(" · ") : "";
    byId("progress-fill").setAttribute("width", all ? String((100 * ended) / all) : "0");
    document.title = `${state === "running" ? `${ended}/${all} · ` : ""}Corral contest${run.run ? ` ${run.run}` : ""}`;
    let mostMemory = 0;
    for (const lane of lanes.values()) {
      const last = lane.attempts.size ? lane.last : null;
      mostMemory = Math.max(mostMemory, lane.meter.memory_bytes || 0, (last && last.peak_memory_bytes) || 0);
    }
    const order = [...lanes.values()].sort((a, b) => {
      const [x, y] = [a.place(), b.place()];
      return x[0] - y[0] || x[1] - y[1];
    });
    const rows = byId("rows");
    order.forEach((lane, index) => {
      lane.show(mostMemory);
      if (rows.children[index] !== lane.row) rows.insertBefore(lane.row, rows.children[index] || null);
    });
    byId("lanes").classList.toggle("many", lanes.size > MANY_LANES);
    for (const lane of lanes.values()) lane.root.hidden = !fits(lane);
  }

  function fits(lane) {
    if (wanted && !lane.name.toLowerCase().includes(wanted) && !lane.id.toLowerCase().includes(wanted)) return false;
    return filter === "all" || (filter === "running" && lane.running) || (filter === "ended" && lane.phase === "ended") || (filter === "failed" && lane.failed);
  }

  function change() {
    if (dirty) return;
    dirty = true;
    requestAnimationFrame(render);
  }

  function addWarning(text) {
    const list = byId("warnings");
    const item = make("li", "", text);
    item.dir = "auto";
    list.append(item);
    while (list.children.length > 20) list.firstChild.remove();
    list.hidden = false;
  }

  // ---------------------------------------------------------------------------------------------------------- events
  function takeSnapshot(data) {
    run = data.run || {};
    state = data.state;
    offset = null; // a resumed run's clock stood still in between
    lastAt = 0;
    noteTime(data.at);
    lanes.clear();
    byId("rows").replaceChildren();
    byId("lanes").replaceChildren();
    byId("warnings").replaceChildren();
    byId("warnings").hidden = true;
    data.warnings.forEach(addWarning);
    for (const found of data.lanes) {
      const lane = new Lane(found);
      lane.phase = found.phase;
      lane.round = found.round;
      lane.begunAt = found.begun_at;
      lane.meter = found.meter;
      lane.standing = found.standing;
      for (const attempt of found.attempts) lane.attempts.set(attempt.round, attempt);
      lanes.set(found.id, lane);
      byId("lanes").append(lane.root);
      for (const [stream, text] of found.log) lane.append(stream, text);
      lane.log.scrollTop = lane.log.scrollHeight;
    }
    render();
  }

  function noteTime(at) {
    lastAt = Math.max(lastAt, at);
    // Events may come late, never early: the smallest difference is the truest.
    const found = now() - at;
    offset = offset === null ? found : Math.min(offset, found);
  }

  const TAKEN = {
    output: (lane, data) => lane.append(data.stream, data.text),
    retry: (lane, data) => lane.append(data.stream, data.text),
    "output-cut": (lane, data) => lane.append(data.stream, data.text),
    meter: (lane, data) => (lane.meter = data),
    judged: (lane, data) => (lane.standing = data),
    phase: (lane, data) => {
      if (data.cleared) {
        lane.clear();
        lane.meter = {};
      }
      lane.phase = data.phase;
      lane.round = data.round;
      lane.begunAt = data.begun_at;
    },
    "attempt-ended": (lane, data) => {
      lane.phase = data.phase;
      lane.attempts.set(data.attempt.round, data.attempt);
      lane.shownFiles = -1;
      for (const [stream, text] of data.log) lane.append(stream, text);
    },
  };

  const source = new EventSource("events");
  source.addEventListener("snapshot", (event) => takeSnapshot(JSON.parse(event.data)));
  for (const [kind, take] of Object.entries(TAKEN)) {
    source.addEventListener(kind, (event) => {
      const found = JSON.parse(event.data);
      const lane = lanes.get(found.candidate);
      noteTime(found.at);
      if (!lane) return;
      take(lane, found.data);
      change();
    });
  }
  const onRun = (kind, take) =>
    source.addEventListener(kind, (event) => {
      const found = JSON.parse(event.data);
      noteTime(found.at);
      take(found.data);
      change();
    });
  onRun("warning", (data) => addWarning(data.text));
  onRun("judging", () => {
    state = "judging";
    for (const lane of lanes.values()) lane.standing = null;
  });
  onRun("run-ended", (data) => (state = data.state));
  source.addEventListener("error", () => {
    byId("state").textContent = "connection lost, trying again";
    byId("state").dataset.state = "lost";
  });
  source.addEventListener("open", change);

  // ------------------------------------------------------------------------------------------------------- artifacts
  const viewer = byId("viewer");
  let asked = 0;

  async function openArtifact(lane, number, index, file) {
    const mine = ++asked;
    const where = `${encodeURIComponent(lane.id)}/${number}/${index}`;
    byId("viewer-title").textContent = `${lane.name} – ${file.path}`;
    byId("viewer-download").href = `download/${where}`;
    const body = byId("viewer-body");
    body.replaceChildren(make("p", "remark", "loading"));
    viewer.showModal();
    try {
      const answer = await fetch(`artifact/${where}`);
      const kind = answer.headers.get("content-type") || "";
      if (!answer.ok) throw new Error(String(answer.status));
      if (mine !== asked) return;
      if (kind.startsWith("image/")) {
        const image = make("img");
        image.alt = file.path;
        image.src = `artifact/${where}`;
        body.replaceChildren(image);
      } else {
        const pre = make("pre", "", await answer.text());
        pre.tabIndex = 0;
        if (mine === asked) body.replaceChildren(pre);
      }
    } catch (error) {
      if (mine === asked) body.replaceChildren(make("p", "remark", "The file could not be loaded."));
    }
  }
  byId("viewer-close").addEventListener("click", () => viewer.close());

  for (const button of document.querySelectorAll("[data-filter]")) {
    button.addEventListener("click", () => {
      filter = button.dataset.filter;
      for (const other of document.querySelectorAll("[data-filter]")) other.setAttribute("aria-pressed", String(other === button));
      change();
    });
  }
  byId("find").addEventListener("input", (event) => {
    wanted = event.target.value.toLowerCase();
    change();
  });
  setInterval(() => {
    byId("clock").textContent = run.run ? showSeconds(runTime()) : "";
    for (const lane of lanes.values()) if (lane.phase === "run") lane.tick();
  }, 250);
})();
