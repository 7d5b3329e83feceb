"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const main = $("main");

  // Times: shown in the browser's zone, or in UTC if the page is set so, with the exact instant on
  // hover. Forms say in which zone their times are.
  const timeZone = document.documentElement.dataset.zone || Intl.DateTimeFormat().resolvedOptions().timeZone;
  const zones = new Intl.DateTimeFormat(undefined, { timeZone, timeZoneName: "short" });
  const zone = (at) => zones.formatToParts(at).find((part) => part.type === "timeZoneName").value; // of summer or winter
  const full = new Intl.DateTimeFormat(undefined, { timeZone, dateStyle: "medium", timeStyle: "long" });
  const medium = new Intl.DateTimeFormat(undefined, { timeZone, dateStyle: "medium", timeStyle: "medium" });
  const short = { format: (at) => medium.format(at) + " " + zone(at) };
  document.querySelectorAll("input[name=zone]").forEach((field) => { field.value = timeZone; });
  const clock = (time) => {
    const at = new Date(time.dateTime);
    const exact = full.format(at) + " (." + String(at.getMilliseconds()).padStart(3, "0") + ")";
    if (time.title !== exact) time.title = exact;
    if ("exact" in time.dataset && time.textContent !== short.format(at)) time.textContent = short.format(at);
  };

  // Charts: drawn from the data in their element.
  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const units = [[86400e3, " d"], [3600e3, " h"], [60e3, " min"], [1e3, " s"], [1, " ms"]];
  const lasts = (ms) => { const [of, name] = units.find(([of]) => ms >= of) || [1, " ms"]; return +(ms / of).toFixed(1) + name; };
  const figure = { "": (v) => v.toLocaleString(), "/s": (v) => +v.toFixed(2) + "/s", ms: lasts };
  const draw = (box) => {
    const chart = JSON.parse(box.dataset.chart);
    const old = plots.get(box.id);
    if (old && old.root.isConnected && old.kind === chart.kind) return old.setData(chart.data);
    if (old) old.destroy();
    box.textContent = "";
    const strokes = [colour("--accent"), colour("--warning"), colour("--critical")];
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const x = chart.data[0];
    const days = x[x.length - 1] - x[0] > 2 * 86400;
    const label = new Intl.DateTimeFormat(undefined, days ? { timeZone, day: "numeric", month: "short" } :
      { timeZone, hour: "2-digit", minute: "2-digit", second: x[x.length - 1] - x[0] < 300 ? "2-digit" : undefined, hourCycle: "h23" });
    const bars = chart.kind === "bars";
    const read = document.createElement("p"); // the values under the pointer
    read.className = "readout";
    read.setAttribute("aria-live", "off");
    const point = (u) => {
      const i = u.cursor.idx;
      read.textContent = i == null ? "" : short.format(u.data[0][i] * 1000) + ": " + u.series.slice(1).map((s, n) =>
        s.label + " " + (u.data[n + 1][i] == null ? "–" : figure[chart.unit](u.data[n + 1][i]))).join(", ");
    };
    // What is all the same, such as nothing at all, has one mark, and not a row of equal ones.
    const marks = (_, all) => all.map((v) => v == null ? "" : figure[chart.unit](v)).map((text, i, texts) => texts.indexOf(text) === i ? text : "");
    const times = (_, all) => all.map((at) => label.format(at * 1000)).map((text, i, texts) => texts.indexOf(text) === i ? text : "");
    const plot = new uPlot({
      width: box.clientWidth || 300, height: 170, hooks: { setCursor: [point] }, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 70, values: times }, { ...axis, size: 62, values: marks }],
      series: [{}, ...chart.names.map((label, i) => ({
        label, stroke: strokes[i], width: bars ? 0 : 1.75, fill: bars ? strokes[i] : undefined,
        paths: bars ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined, points: { show: false },
      }))],
    }, chart.data, box);
    box.append(read);
    plot.kind = chart.kind;
    plots.set(box.id, plot);
  };
  const redraw = () => document.querySelectorAll(".chart").forEach((box) => {
    plots.get(box.id)?.destroy();
    plots.delete(box.id);
    draw(box);
  });

  const refresh = () => {
    main.querySelectorAll("time").forEach(clock);
    main.querySelectorAll(".chart").forEach(draw);
  };
  addEventListener("resize", () => { clearTimeout(redraw.timer); redraw.timer = setTimeout(redraw, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // News: the page keeps what is drawn or opened, and takes the rest over.
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old, fresh) => {
    if (old.classList?.contains("chart")) {
      old.dataset.chart = fresh.dataset.chart;
      return false;
    }
    if (old.nodeName === "DETAILS") fresh.open = old.open;
    return !(old === document.activeElement && /^(INPUT|SELECT|TEXTAREA)$/.test(old.nodeName));
  };
  // A browser allows six connections to a server, so a tab that nobody sees has none.
  htmx.createEventSource = (url) => {
    const listeners = [];
    let inner;
    const source = {
      addEventListener: (...listener) => { listeners.push(listener); inner?.addEventListener(...listener); },
      removeEventListener: (...listener) => inner?.removeEventListener(...listener),
      close: () => { document.removeEventListener("visibilitychange", look); inner?.close(); },
      get readyState() { return inner ? inner.readyState : EventSource.CONNECTING; },
    };
    const look = () => {
      inner?.close();
      inner = undefined;
      if (document.hidden) return state("Waits until you look", "");
      inner = new EventSource(url);
      inner.onopen = (e) => source.onopen?.(e);
      inner.onerror = (e) => {
        if (inner.readyState === EventSource.CLOSED) document.removeEventListener("visibilitychange", look); // htmx makes another
        source.onerror?.(e);
      };
      listeners.forEach((listener) => inner.addEventListener(...listener));
    };
    document.addEventListener("visibilitychange", look);
    look();
    return source;
  };
  const state = (text, kind) => {
    $("state").textContent = text;
    $("state").className = "state " + kind;
  };
  document.body.addEventListener("htmx:sseOpen", () => state("Live", "live"));
  document.body.addEventListener("htmx:sseError", () => state("Not live: the page tries to connect again", "lost"));
  document.body.addEventListener("htmx:sseMessage", () => {
    refresh();
    const lost = $("trouble")?.textContent.trim() || main.querySelector("[data-trouble]"); // Redis does not answer
    lost ? state($("trouble")?.querySelector("[data-gone]") ? "Not live" : "Not live: Redis does not answer", "lost") : state("Live", "live");
  });

  // Keys.
  const rows = () => [...main.querySelectorAll("a.row")];
  const step = (by) => {
    const all = rows();
    const at = all.indexOf(document.activeElement);
    all[Math.min(Math.max(at < 0 ? 0 : at + by, 0), all.length - 1)]?.focus();
  };
  const keys = {
    "/": () => { $("search").focus(); $("search").select(); },
    "?": () => $("keys").showModal(),
    j: () => step(1),
    k: () => step(-1),
    u: () => [...main.querySelectorAll(".crumbs a")].pop()?.click(),
    g: () => document.querySelector(".bar nav a").click(),
    s: () => document.querySelector(".bar nav a:nth-child(2)").click(),
    f: () => document.querySelector(".bar nav a:nth-child(3)").click(),
    a: () => document.querySelector(".bar nav a:last-child").click(),
  };
  addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.nodeName) || $("keys").open) return;
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  $("help").addEventListener("click", () => $("keys").showModal());

  refresh();
})();
