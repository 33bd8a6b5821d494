"use strict";
// The browser of episodes: filters, list, and one episode as a conversation and as tokens.

const PAGE = 200;
const filters = { source: "all", search: "", verdict: "all", low: "", high: "", order: "stored" };
const view = { episode: null, color: "mask", shown: PAGE };

const verdictOf = (e) =>
  e.status === "infra_failed" ? "infra" : e.reward === null ? "unscored" : e.correct === null ? "scored" : e.correct ? "correct" : "wrong";
const KINDS = { correct: "ok", wrong: "fail", infra: "warn" };

function matching() {
  const wanted = filters.search.toLowerCase();
  const found = D.episodes.filter(
    (e) =>
      (filters.source === "all" || e.source === Number(filters.source)) &&
      (filters.verdict === "all" || verdictOf(e) === filters.verdict) &&
      (filters.low === "" || (e.reward !== null && e.reward >= Number(filters.low))) &&
      (filters.high === "" || (e.reward !== null && e.reward <= Number(filters.high))) &&
      (!wanted || e.task.toLowerCase().includes(wanted) || text(e.final).toLowerCase().includes(wanted)),
  );
  const key = { reward: (e) => -(e.reward ?? -Infinity), length: (e) => -e.sampled }[filters.order];
  return key ? found.sort((a, b) => key(a) - key(b)) : found;
}

function showEpisodes() {
  const list = make("div", { class: "list", id: "list" });
  const detail = make("div", { class: "card", id: "episode" });
  const count = make("span", { class: "soft", id: "count" });
  const refresh = () => {
    view.shown = PAGE;
    showList(list, detail, count);
  };
  const set = (name) => (value) => {
    filters[name] = value;
    refresh();
  };
  const sources = [["all", "all steps"], ...D.sources.map((_, i) => [String(i), sourceName(i)])];
  const verdicts = ["all", "correct", "wrong", "scored", "unscored", "infra"].map((v) => [v, v === "all" ? "all verdicts" : v]);
  const orders = [["stored", "as stored"], ["reward", "by reward"], ["length", "by length"]];
  const bound = (name, label) =>
    make("input", { type: "number", step: "any", placeholder: label, "aria-label": label, oninput: (e) => set(name)(e.target.value) });
  const bar = make("div", { class: "filters" },
    choice(sources, filters.source, set("source"), "step"),
    choice(verdicts, filters.verdict, set("verdict"), "verdict"),
    make("input", { type: "search", id: "search", placeholder: "task or answer", "aria-label": "task or answer", oninput: (e) => set("search")(e.target.value) }),
    make("label", {}, "reward", bound("low", "from"), bound("high", "to")),
    choice(orders, filters.order, set("order"), "order"),
    count);
  const browser = make("div", { class: "browser" }, list, detail);
  document.getElementById("episodes").replaceChildren(bar, browser);
  refresh();
}

function showList(list, detail, count) {
  const found = matching();
  count.textContent = `${found.length} of ${D.episodes.length} episodes`;
  if (!found.includes(view.episode)) view.episode = found[0] || null;
  const select = (episode) => {
    view.episode = episode;
    showList(list, detail, count);
  };
  const scroll = list.scrollTop;
  list.replaceChildren(...found.slice(0, view.shown).map((e) => listEntry(e, select)));
  list.scrollTop = scroll;
  if (found.length > view.shown) {
    const more = () => {
      view.shown += PAGE;
      showList(list, detail, count);
    };
    list.append(make("button", { onclick: more }, `show more (${found.length - view.shown} left)`));
  }
  const none = make("p", { class: "empty" }, D.episodes.length ? "No episode fits these filters." : "No episodes are stored.");
  detail.replaceChildren(view.episode ? episodeView(view.episode) : none);
}

function listEntry(episode, select) {
  const verdict = verdictOf(episode);
  return make("button", { "aria-current": episode === view.episode, onclick: () => select(episode) },
    make("span", { class: "task" }, episode.task),
    badge(episode.reward === null ? verdict : number(episode.reward), KINDS[verdict]),
    make("span", { class: "final" }, `${sourceName(episode.source)} · ${text(episode.final).slice(0, 120) || "no text"}`));
}

function facts(episode) {
  const verdict = verdictOf(episode);
  const chips = [badge(verdict, KINDS[verdict]), badge(`reward ${number(episode.reward)}`), badge(`stop ${episode.stop}`), badge(`${episode.sampled} tokens sampled`)];
  if (episode.advantage !== null) chips.push(badge(`group advantage ${number(episode.advantage)}`));
  if (episode.answer !== null) chips.push(badge(`reference ${text(episode.answer).slice(0, 80)}`));
  for (const [name, value] of Object.entries(episode.parts)) chips.push(badge(`${name} ${number(value)}`));
  for (const [name, value] of Object.entries(episode.counts)) chips.push(badge(`${name} ${number(value)}`));
  return make("div", { class: "facts" }, chips);
}

function episodeView(episode) {
  const reasons = [text(episode.why), episode.failure === null ? "" : text(episode.failure)].filter(Boolean);
  const body = make("div", {},
    make("h3", {}, `${episode.task} · ${sourceName(episode.source)} · episode ${episode.number + 1} of its group`),
    facts(episode),
    reasons.map((reason) => make("p", { class: "soft" }, reason)),
    make("div", { class: "conversation" }, episode.messages.filter(hasContent).map(messageView)));
  const tokens = make("div", {});
  const show = () => tokens.replaceChildren(tokenPanel(episode, show));
  show();
  body.append(tokens);
  return body;
}

const hasContent = (m) => text(m.text) || m.reasoning !== undefined || m.calls || m.images;

function messageView(message) {
  const calls = (message.calls || []).map((call) =>
    make("div", { class: `call text ${call.error ? "error" : ""}` }, `${text(call.name)}(${text(call.arguments)})${call.error ? ` — ${call.error}` : ""}`));
  return make("div", { class: `message ${message.role}` },
    make("div", { class: "role" }, message.answers ? `${message.role} (${message.answers})` : message.role),
    message.reasoning === undefined ? null : make("div", { class: "text reasoning" }, text(message.reasoning)),
    text(message.text) ? make("div", { class: "text" }, text(message.text)) : null,
    calls,
    message.images ? make("div", { class: "soft" }, `${message.images} image(s), not shown`) : null);
}

const MODES = {
  mask: "what was sampled and trained (violet) against context (plain)",
  logprob: "how unlikely the token was when it was sampled: the redder, the less likely",
  advantage: "sampled tokens by group advantage, recomputed from scores before any shaping: green pushed up, red pushed down",
};

function tokenPanel(episode, again) {
  if (!episode.streams.length) return make("p", { class: "soft" }, "No tokens are stored for this episode.");
  const pick = choice(Object.keys(MODES).map((mode) => [mode, `colour by ${mode}`]), view.color, (mode) => {
    view.color = mode;
    again();
  }, "colour of tokens");
  const streams = episode.streams.map((stream, i) => make("div", { class: "tokens" },
    episode.streams.length > 1 ? make("div", { class: "role" }, `stream ${i + 1}${stream.trainable ? "" : ", not trainable"}`) : null,
    stream.runs.map((run) => (run.ids ? sampledRun(run, episode, stream.trainable) : contextRun(run)))));
  return make("div", {},
    make("h2", {}, "Tokens"),
    make("div", { class: "scale" }, pick, make("span", { class: "soft" }, `${MODES[view.color]}. ${D.decoding}.`)),
    streams);
}

function contextRun(run) {
  const shown = run.text === null ? `⟨${run.n} tokens of context⟩` : text(run.text);
  return make("span", { class: "context", title: `${run.n} tokens of context` }, shown);
}

function sampledRun(run, episode, trainable) {
  const spans = run.ids.map((id, i) => {
    const shown = D.vocabulary[id] || `⟨${id}⟩`;
    const logprob = run.logprobs[i];
    const title = `id ${id}, log-prob ${logprob}, p ${number(Math.exp(logprob))}, policy version ${run.version}`;
    const span = make("span", { class: "token", title }, shown.replaceAll("\n", "↵\n"));
    span.style.background = tokenColor(logprob, episode, trainable);
    return span;
  });
  if (run.cut) spans.push(make("span", { class: "soft" }, ` ⟨${run.cut} more tokens left out⟩ `));
  return spans;
}

function tokenColor(logprob, episode, trainable) {
  if (view.color === "logprob") return `rgba(var(--bad), ${(0.75 * (1 - Math.exp(logprob))).toFixed(2)})`;
  if (view.color === "advantage") {
    if (!trainable || !episode.advantage) return "transparent";
    const strength = Math.min(0.6, 0.12 + 0.25 * Math.abs(episode.advantage));
    return `rgba(var(${episode.advantage > 0 ? "--good" : "--bad"}), ${strength.toFixed(2)})`;
  }
  return trainable ? "rgba(var(--sampled), 0.22)" : "transparent";
}
