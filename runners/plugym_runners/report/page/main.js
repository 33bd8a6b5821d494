"use strict";
// Tabs, findings and the overview; starts everything.

const TABS = { overview: "Overview", episodes: "Episodes", compare: "Compare", settings: "Settings" };
const FINDINGS = ["fail", "warn", "skip", "ok"];

function showTab(name) {
  for (const id of Object.keys(TABS)) document.getElementById(id).hidden = id !== name;
  for (const button of document.getElementById("tabs").children) {
    button.setAttribute("aria-selected", button.dataset.tab === name);
  }
}

function findingView(finding) {
  return make("div", { class: "finding", "data-check": finding.name },
    badge(finding.status, finding.status),
    make("strong", {}, finding.name.replaceAll("_", " ")),
    make("span", {}, finding.detail, finding.advice ? make("span", { class: "advice" }, `What to change: ${finding.advice}`) : null));
}

function findingsView() {
  const sorted = [...D.findings].sort((a, b) => FINDINGS.indexOf(a.status) - FINDINGS.indexOf(b.status));
  const open = sorted.filter((f) => f.status === "fail" || f.status === "warn");
  const rest = sorted.filter((f) => !open.includes(f));
  const counts = FINDINGS.map((status) => [status, sorted.filter((f) => f.status === status).length]).filter(([, n]) => n);
  const checked = sorted.some((f) => f.status !== "skip");
  const nothing = checked ? "Nothing stands out in what could be checked." : "No check could run yet: see why below.";
  return make("div", { class: "card findings", id: "findings" },
    make("div", { class: "facts" }, counts.map(([status, n]) => badge(`${n} ${status}`, status))),
    open.length ? open.map(findingView) : make("span", { class: "soft" }, nothing),
    rest.length ? make("details", {}, make("summary", {}, `${rest.length} checks that found nothing or could not run`), make("div", { class: "findings" }, rest.map(findingView))) : null);
}

function anyMetric() {
  const names = Object.keys(D.metrics).filter((name) => name !== "step").sort();
  const plot = make("div", { class: "charts" });
  const show = (name) => plot.replaceChildren(chart(name, [series(D.metrics, name)]) || make("p", { class: "empty" }, "no numbers"));
  if (!names.length) return null;
  show(names[0]);
  return make("div", {}, make("h2", {}, "Any metric"), make("div", { class: "filters" }, choice(names.map((n) => [n, n]), names[0], show, "metric")), plot);
}

function start() {
  document.getElementById("run").textContent = D.run;
  const steps = (D.metrics.step || []).length;
  document.getElementById("title").textContent = `${D.title} · ${steps} steps`;
  const tabs = Object.entries(TABS).map(([id, label]) =>
    make("button", { role: "tab", "data-tab": id, onclick: () => showTab(id) }, label));
  document.getElementById("tabs").append(...tabs);
  const notes = D.notes.length ? make("ul", { class: "notes" }, D.notes.map((note) => make("li", {}, note))) : null;
  const charts = allCharts();
  const curves = charts.length ? make("div", { class: "charts" }, charts) : make("p", { class: "empty" }, "No metrics are written yet.");
  const parts = [notes, make("h2", {}, "Findings"), findingsView(), make("h2", {}, "Curves"), curves, anyMetric()];
  document.getElementById("overview").append(...parts.filter(Boolean));
  showEpisodes();
  showCompare();
  document.getElementById("settings").append(make("h2", {}, "config.toml"), make("pre", { class: "card" }, D.config));
  showTab("overview");
}

start();
