"use strict";
// Two steps (or evaluations) on the same task, side by side; words that the other answer does not have are marked.

const comparison = { task: null, sides: [null, null], picks: [0, 0] };
const MAX_WORDS = 600;

function tasksInSeveral() {
  const where = new Map();
  for (const episode of D.episodes) {
    if (!where.has(episode.task)) where.set(episode.task, new Set());
    where.get(episode.task).add(episode.source);
  }
  const order = [...where].filter(([, sources]) => sources.size > 1).sort((a, b) => b[1].size - a[1].size);
  return new Map(order.map(([task, sources]) => [task, [...sources].sort((a, b) => D.sources[a].step - D.sources[b].step)]));
}

function showCompare() {
  const tasks = tasksInSeveral();
  const root = document.getElementById("compare");
  if (!tasks.size) {
    const why = "No task was played in two of the steps shown. Evaluations play the same tasks each time: set --eval.before true and --eval.every N.";
    root.replaceChildren(make("p", { class: "empty" }, why));
    return;
  }
  const choose = (task) => {
    const sources = tasks.get(task);
    Object.assign(comparison, { task, sides: [sources[0], sources[sources.length - 1]], picks: [0, 0] });
    refresh();
  };
  const refresh = () => {
    const names = [...tasks.keys()].map((task) => [task, `${task} (${tasks.get(task).length} times)`]);
    const options = tasks.get(comparison.task).map((source) => [String(source), sourceName(source)]);
    const side = (i) => choice(options, String(comparison.sides[i]), (value) => {
      comparison.sides[i] = Number(value);
      comparison.picks[i] = 0;
      refresh();
    }, i ? "right" : "left");
    const bar = make("div", { class: "filters" }, choice(names, comparison.task, choose, "task"), side(0), "against", side(1));
    root.replaceChildren(bar, sidesView(refresh));
  };
  choose(tasks.keys().next().value);
}

function sidesView(refresh) {
  const found = comparison.sides.map((source) => D.episodes.filter((e) => e.task === comparison.task && e.source === source));
  const chosen = found.map((episodes, i) => episodes[comparison.picks[i]]);
  const words = chosen.map((e) => text(e.final).split(/(\s+)/).filter(Boolean));
  const kept = common(words[0], words[1]);
  const column = (i) => {
    const picks = found[i].map((e, k) =>
      make("button", { "aria-current": k === comparison.picks[i], onclick: () => {
        comparison.picks[i] = k;
        refresh();
      } }, `${k + 1}: ${number(e.reward)}`));
    const scored = found[i].filter((e) => e.reward !== null);
    const mean = scored.length ? scored.reduce((sum, e) => sum + e.reward, 0) / scored.length : null;
    return make("div", { class: "card" },
      make("h3", {}, `${sourceName(comparison.sides[i])}: mean reward ${number(mean)} of ${scored.length}`),
      make("div", { class: "picks" }, picks),
      facts(chosen[i]),
      make("div", { class: "role" }, "final answer, differences marked"),
      make("div", { class: "text diff" }, marked(words[i], kept[i])),
      make("h2", {}, "Conversation"),
      chosen[i].messages.filter(hasContent).map(messageView));
  };
  return make("div", { class: "columns" }, column(0), column(1));
}

// Which words of each side belong to a longest common subsequence.
function common(a, b) {
  if (a.length > MAX_WORDS || b.length > MAX_WORDS) return [null, null];
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const kept = [new Set(), new Set()];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) kept[0].add(i++), kept[1].add(j++);
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return kept;
}

function marked(words, kept) {
  return words.map((word, i) => (kept === null || kept.has(i) || !word.trim() ? word : make("mark", {}, word)));
}
