"use strict";
// The viewer of walks. Texts of a run are untrusted: they become text nodes and attribute values, never markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const create = (space) => (name, attributes = {}, ...children) => {
    const node = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const html = create("http://www.w3.org/1999/xhtml");
  const svg = create("http://www.w3.org/2000/svg");

  // Step kind -> sign, what it is called, class.
  const KINDS = {
    new: ["+", "new evidence", "new"],
    echo: ["↻", "echo", "echo"],
    connector: ["·", "connector", "connector"],
    illegal: ["×", "no such move", "illegal"],
    unparsed: ["×", "not an action", "illegal"],
    stop: ["■", "stop", "stop"],
    late: ["×", "too late", "illegal"],
  };
  const OBSERVATION = 1, REPRESENTATION = 2, SOURCE = 3;
  const WALKED = ["new", "echo", "connector"];
  const MANY_NODES = 40; // above, only nodes that were walked are named

  const signed = (value, digits = 3) => {
    const text = Math.abs(value).toFixed(digits);
    if (Number(text) === 0) return Number(0).toFixed(digits);
    return (value < 0 ? "−" : "+") + text;
  };
  const plain = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
  const short = (text, length) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
  const plural = (count, one, many) => `${count} ${count === 1 ? one : many}`;
  const chip = (kind) => html("span", { class: `chip mark-${KINDS[kind][2]}` }, html("b", { "aria-hidden": "true" }, KINDS[kind][0]), KINDS[kind][1]);
  const stanceClass = (walk, place) => (place < 0 ? "" : walk.graph.sources[place][1].toLowerCase());
  const labelOf = (episode, source) => (episode.labels.find((pair) => pair[1] === source) || [null])[0];
  const aliasAt = (episode, place) => (episode.names.find((name) => name[0] === place) || [0, null, 0])[1];

  // ---------------------------------------------------------------- filters
  const countsDiffer = (e) => e.provenance.counts.some((c) => c.stated !== null && c.stated !== c.acquired);
  const OUTCOMES = {
    "any outcome": () => true,
    right: (e) => e.right === true,
    wrong: (e) => e.right === false,
    "right where another is wrong": (e, all) => e.right === true && all.some((o) => o.right === false),
    "wrong where another is right": (e, all) => e.right === false && all.some((o) => o.right === true),
    invalid: (e) => e.ending === "invalid",
    truncated: (e) => e.ending === "truncated",
    error: (e) => e.ending === "error",
    "with echoes": (e) => e.counts[1] > 0,
    "with actions that did nothing": (e) => e.counts[3] > 0,
    "counts differ from sources read": countsDiffer,
    "cites a source it never read": (e) => e.provenance.citations.some((c) => c.status !== "read"),
  };
  const state = { matches: [], walk: 0, step: 0, objective: 0, shown: data.policies.length > 1 ? [0, 1] : [0], panes: [] };

  const fill = (select, values) => select.replaceChildren(...values.map(([value, text]) => html("option", { value }, text)));

  function applyFilters(keep) {
    const condition = byId("f-condition").value, policy = byId("f-policy").value;
    const wanted = OUTCOMES[byId("f-outcome").value];
    state.matches = data.walks.map((walk, place) => place).filter((place) => {
      const walk = data.walks[place];
      if (condition !== "" && walk.condition !== condition) return false;
      const chosen = policy === "" ? walk.episodes : [walk.episodes[Number(policy)]];
      return chosen.some((episode) => wanted(episode, walk.episodes));
    });
    byId("f-count").textContent = plural(state.matches.length, "walk", "walks");
    const isKept = keep && state.matches.includes(state.walk);
    if (!isKept && state.matches.length) showWalk(state.matches[0], 0);
    drawList();
    byId("stage").hidden = state.matches.length === 0;
  }

  function drawList() {
    const items = state.matches.map((place) => {
      const walk = data.walks[place];
      const results = walk.episodes.map((episode, policy) => html("span", { class: `result ${resultClass(episode)}` }, `${data.policies[policy]} ${resultSign(episode)}`));
      const button = html("button", { type: "button", "data-walk": place, title: walk.reasons.join("\n") },
        html("span", { class: "cond" }, short(walk.condition, 14)), html("span", { class: "text" }, walk.claim), html("span", { class: "results" }, ...results));
      return html("li", {}, button);
    });
    byId("list").replaceChildren(...(items.length ? items : [html("li", { class: "empty" }, "No walk matches; loosen a filter.")]));
    markList();
  }

  function markList() {
    for (const button of byId("list").querySelectorAll("button")) {
      const isCurrent = Number(button.dataset.walk) === state.walk;
      button.setAttribute("aria-current", isCurrent ? "true" : "false");
      button.tabIndex = isCurrent ? 0 : -1;
      // scrollIntoView would move the page too
      if (isCurrent) byId("list").scrollTop = Math.max(0, button.offsetTop - 80);
    }
  }

  const resultClass = (e) => (e.right === null ? "none" : e.right ? "right" : "wrong");
  const resultSign = (e) => (e.right === null ? e.ending : e.right ? "✓" : "✗");

  // ---------------------------------------------------------------- the graph
  function drawGraph(walk, episode, policy) {
    const { nodes, edges, sources, radius, joinsAll, hiddenRoutes } = walk.graph;
    const namesAll = nodes.length <= MANY_NODES;
    const walked = new Set(episode.steps.map((step) => step.node));
    const labels = sources.map(([source]) => short(labelOf(episode, source) || "–", 9));
    const high = Math.max(70, ...nodes.map((n) => Math.abs(n[2]))) + 28;
    const wide = Math.max(190, ...nodes.map((n) => Math.abs(n[1]))) + Math.max(0, ...labels.map(boxWidth)) - 22;
    const root = svg("svg", { class: "graph", viewBox: `${-wide} ${-high} ${2 * wide} ${2 * high}`, role: "img", "aria-label": `Evidence graph under ${data.policies[policy]}: ${plural(sources.length, "source", "sources")}, ${plural(walk.routes, "route", "routes")}. The steps are listed below.` });
    if (joinsAll && nodes.filter((n) => n[0] === OBSERVATION).length > 2) root.append(svg("circle", { class: "ring", r: 82 }));
    for (const [a, b] of edges) root.append(svg("line", { class: "edge", x1: nodes[a][1], y1: nodes[a][2], x2: nodes[b][1], y2: nodes[b][2] }));
    const moves = svg("g"), marks = svg("g"), names = svg("g");
    root.append(moves, marks, names);
    const halo = svg("circle", { class: "halo", r: 15 });
    marks.append(halo);

    const drawn = nodes.map(([kind, x, y, source, word, id], place) => {
      const group = svg("g", { class: `node k${kind} ${stanceClass(walk, source)}`, transform: `translate(${x} ${y})` });
      group.append(svg("title", {}, source < 0 ? id : `${word} ${id}: ${sources[source][0]} ${sources[source][1] === "SUPPORT" ? "supports" : "refutes"}`));
      const size = walked.has(place) ? Math.max(radius, 8) : radius; // its number must be readable
      const label = kind === 0 ? "claim" : kind === SOURCE ? labels[source] || "–" : "";
      // A long label grows outwards, away from the representations.
      const shift = kind === SOURCE ? Math.sign(Math.round(x / 60)) * (boxWidth(label) / 2 - 13) : 0;
      group.append(shapeOf(kind, size, label, shift));
      const number = svg("text", { class: "number", x: shift, y: 3.6 }, label);
      group.append(number);
      const alias = aliasAt(episode, place);
      const distance = Math.hypot(x, y) || 1, isRing = kind === OBSERVATION || kind === REPRESENTATION, inward = isRing ? size + 10 : 0;
      const name = alias === null ? null : svg("text", { class: "alias", x: x - (x / distance) * inward + (isRing ? (y / distance) * 9 : 0), y: isRing ? y - (y / distance) * inward - (x / distance) * 9 + 3 : y + 21 }, alias); // beside edge and arrow
      if (name) names.append(name);
      marks.append(group);
      const first = episode.names.find((entry) => entry[0] === place);
      return { group, number, name, kind, source, seenFrom: first ? first[2] : Infinity };
    });

    // Moves, one arrow each; the walker starts on the claim.
    let from = 0;
    const arrows = episode.steps.map((step) => {
      const start = from;
      from = step.node;
      if (!WALKED.includes(step.kind)) return null;
      const arrow = arrowBetween(nodes[start], nodes[step.node], KINDS[step.kind][2]);
      moves.append(arrow);
      return arrow;
    });
    if (hiddenRoutes) root.append(svg("text", { class: "alias", x: 6 - wide, y: high - 6, "text-anchor": "start" }, `${hiddenRoutes} of ${walk.routes} routes not drawn`));

    const update = (at) => {
      const done = episode.steps.slice(0, at);
      const here = at === 0 ? 0 : episode.steps[at - 1].node;
      const kindHere = at === 0 ? "start" : KINDS[episode.steps[at - 1].kind][2];
      const read = new Set(done.filter((s) => s.kind === "new").map((s) => s.source));
      arrows.forEach((arrow, place) => {
        if (!arrow) return;
        arrow.classList.toggle("later", place >= at);
        arrow.classList.toggle("now", place === at - 1);
      });
      drawn.forEach((node, place) => {
        const visits = done.map((s, number) => [s, number + 1]).filter(([s]) => s.node === place && WALKED.includes(s.kind));
        const isEcho = visits.length > 0 && visits[0][0].kind === "echo";
        node.group.classList.toggle("unseen-yet", node.seenFrom > at);
        node.group.classList.toggle("visited", visits.length > 0);
        node.group.classList.toggle("echoed", isEcho);
        if (node.kind === SOURCE) node.group.classList.toggle("read", read.has(sources[node.source] && sources[node.source][0]));
        else if (node.kind !== 0) node.number.textContent = visits.length ? String(visits[0][1]) : "";
        if (node.name) node.name.classList.toggle("later", node.seenFrom > at || !(namesAll || visits.length || place === here));
      });
      halo.setAttribute("cx", nodes[here][1]);
      halo.setAttribute("cy", nodes[here][2]);
      halo.setAttribute("class", `halo mark-${kindHere}`);
    };
    return { root, update };
  }

  const boxWidth = (label) => Math.max(26, label.length * 6.4 + 10);

  function shapeOf(kind, size, label, shift) {
    const sign = (name, attributes) => svg(name, { class: "sign", ...attributes });
    if (kind === OBSERVATION) return sign("circle", { r: size });
    if (kind === REPRESENTATION) return sign("rect", { x: -size * 0.8, y: -size * 0.8, width: size * 1.6, height: size * 1.6, rx: 1, transform: "rotate(45)" });
    const width = boxWidth(label);
    return sign("rect", { x: shift - width / 2, y: -10, width, height: 20, rx: kind === SOURCE ? 8 : 3 });
  }

  function arrowBetween(a, b, kind) {
    const dx = b[1] - a[1], dy = b[2] - a[2], length = Math.hypot(dx, dy) || 1;
    const middle = [(a[1] + b[1]) / 2 - dy * 0.14, (a[2] + b[2]) / 2 + dx * 0.14];
    const ex = b[1] - middle[0], ey = b[2] - middle[1], tail = Math.hypot(ex, ey) || 1;
    const gap = Math.min(14, length / 3);
    const end = [b[1] - (ex / tail) * gap, b[2] - (ey / tail) * gap];
    const angle = (Math.atan2(ey, ex) * 180) / Math.PI;
    return svg("g", { class: `move mark-${kind}` },
      svg("path", { class: "line", d: `M${a[1]} ${a[2]}Q${middle[0]} ${middle[1]} ${end[0]} ${end[1]}` }),
      svg("path", { class: "head", d: "M1 0L-8 4.2L-8 -4.2z", transform: `translate(${end[0]} ${end[1]}) rotate(${angle})` }));
  }

  // ---------------------------------------------------------------- one pane: one policy on this walk
  function buildPane(walk, slot) {
    const policy = state.shown[slot], episode = walk.episodes[policy], reward = episode.rewards[state.objective];
    const select = html("select", { "aria-label": `Policy of pane ${slot + 1}` }, ...data.policies.map((name, place) => html("option", { value: place, selected: place === policy }, name)));
    select.addEventListener("change", () => { state.shown[slot] = Number(select.value); rebuild(); state.panes[slot].root.querySelector("select").focus(); });
    const graph = drawGraph(walk, episode, policy);
    const card = html("div", { class: "card" });
    const steps = stepList(walk, episode, reward);
    const root = html("section", { class: "pane", "aria-label": data.policies[policy] },
      html("header", {}, data.policies.length > 1 ? select : html("b", {}, data.policies[0]), html("span", { class: `badge ${resultClass(episode)}` }, resultText(walk, episode))),
      graph.root, card, steps.root, answerOf(walk, episode), rewardOf(reward));
    const update = (step) => {
      const at = Math.min(step, episode.steps.length);
      graph.update(at);
      steps.update(at);
      card.replaceChildren(...cardOf(walk, episode, at));
    };
    return { root, update, episode, policy };
  }

  function resultText(walk, episode) {
    if (episode.right === null) return episode.ending;
    return episode.right ? `✓ right: ${episode.verdict}` : `✗ wrong: ${episode.verdict}, not ${walk.gold}`;
  }

  function stepList(walk, episode, reward) {
    let sum = 0;
    const rows = episode.steps.map((step, place) => {
      const earned = reward ? reward.credit[place].reduce((a, b) => a + b, 0) : null;
      sum += earned || 0;
      const source = step.source === null ? "" : labelOf(episode, step.source) || step.source;
      const button = html("button", { type: "button", class: "step" },
        html("span", { class: "num" }, String(place + 1)),
        html("span", { class: `sign mark-${KINDS[step.kind][2]}`, title: KINDS[step.kind][1] }, KINDS[step.kind][0]),
        html("span", { class: "act" }, short(step.action === null ? "(nothing stored)" : step.action.trim() || "(empty)", 60)),
        html("span", { class: "src" }, short(source, 10)),
        html("span", { class: "credit" }, earned === null ? "–" : signed(earned)),
        html("span", { class: "sum" }, earned === null ? "–" : signed(sum)));
      button.addEventListener("click", () => setStep(place + 1));
      button.setAttribute("aria-label", `Step ${place + 1}: ${short(step.action || "nothing", 80)}. ${KINDS[step.kind][1]}${source ? `, source ${source}` : ""}${earned === null ? "" : `, credit ${signed(earned)}, sum ${signed(sum)}`}`);
      return html("li", {}, button);
    });
    const head = html("div", { class: "step head", "aria-hidden": "true" }, ...["", "", "action", "source", "credit", "sum"].map((text) => html("span", {}, text)));
    const root = html("div", { class: "steps" }, head, html("ol", { "aria-label": "Steps" }, ...rows));
    const update = (at) => rows.forEach((row, place) => {
      row.firstChild.setAttribute("aria-current", place === at - 1 ? "step" : "false");
      row.classList.toggle("later", place >= at);
    });
    return { root, update };
  }

  function explain(episode, at) {
    const step = episode.steps[at - 1], earlier = episode.steps.slice(0, at - 1);
    const name = step.source === null ? "" : labelOf(episode, step.source) || step.source;
    const first = earlier.findIndex((s) => s.source === step.source && s.source !== null) + 1;
    if (step.kind === "new") return first ? `Another observation of ${name}, a source read at step ${first}.` : `${name}'s evidence is read for the first time.`;
    if (step.kind === "echo") return `Repeats ${name}'s observation, read at step ${first}: no new evidence.`;
    if (step.kind === "connector") return "A claim or source node bears no evidence.";
    if (step.kind === "illegal") return "Follows no edge: uses one walk of the budget and reveals nothing.";
    if (step.kind === "unparsed") return "Could not be parsed: uses one walk of the budget and reveals nothing.";
    if (step.kind === "late") return "The budget was spent; only a valid stop could follow.";
    return episode.ending === "answered" ? "Ends the walk with a judgement." : "A stop whose judgement could not be parsed.";
  }

  function budgetOf(walk, left) {
    if (walk.budget > 24) return html("span", { class: "budget" }, `${left} of ${walk.budget} walks left`);
    const pips = Array.from({ length: walk.budget }, (_, i) => html("i", { class: i < left ? "left" : "spent" }));
    return html("span", { class: "budget", role: "img", "aria-label": `${left} of ${walk.budget} walks left` }, ...pips, html("span", {}, `${left} left`));
  }

  function cardOf(walk, episode, at) {
    if (at === 0) {
      const nothing = episode.error === null ? "Nothing was stored of this walk." : `Error: ${episode.error}`;
      return [html("div", { class: "cardhead" }, html("b", {}, "Opening"), budgetOf(walk, walk.budget)), html("p", {}, "What the agent is shown before it acts."), html("pre", {}, episode.opening || nothing)];
    }
    const step = episode.steps[at - 1], isLast = at === episode.steps.length;
    const parts = [html("div", { class: "cardhead" }, html("b", {}, `Step ${at}`), chip(step.kind), budgetOf(walk, step.left)),
      html("pre", { class: "action" }, step.action === null ? "(nothing stored)" : step.action || "(empty)"), html("p", {}, explain(episode, at))];
    if (step.seen !== null) parts.push(html("pre", {}, step.seen));
    else if (isLast) parts.push(html("p", { class: "ended" }, `The walk ended: ${episode.ending}.${episode.error === null ? "" : ` ${episode.error}`}`));
    return parts;
  }

  function answerOf(walk, episode) {
    const { counts, sources, citations } = episode.provenance;
    const section = html("section", { class: "answer" }, html("h4", {}, "Answer and where it comes from"));
    if (episode.verdict === null) section.append(html("p", {}, `No valid judgement (${episode.ending}).`));
    else section.append(html("p", {}, html("b", {}, episode.verdict), ` with confidence ${plain(episode.confidence)}; the distinct sources say `, html("b", {}, walk.gold), "."));
    if (episode.rationale) section.append(html("blockquote", {}, episode.rationale));
    const cell = (text, isOff = false) => html("td", isOff ? { class: "off" } : {}, text);
    const lines = counts.map((c) => html("tr", { class: c.stance.toLowerCase() }, html("th", { scope: "row" }, html("i", { class: "dot" }), c.stance === "SUPPORT" ? "supporting" : "refuting"),
      cell(c.stated === null ? "–" : String(c.stated), c.stated !== null && c.stated !== c.acquired), cell(String(c.acquired)), cell(String(c.available)), cell(String(c.nodes_met))));
    section.append(html("div", { class: "scroll" }, html("table", { class: "counts" }, html("thead", {}, html("tr", {}, ...["sources", "stated", "read", "there are", "nodes met"].map((t) => html("th", { scope: "col" }, t)))), html("tbody", {}, ...lines))));
    section.append(html("ul", { class: "sources" }, ...sources.map((s) => sourceLine(s, episode))));
    const faults = [...counts.filter((c) => c.stated !== null && c.stated !== c.acquired).map(countFault), ...citations.filter((c) => c.status !== "read" || c.times > 1).map(citationFault)];
    if (faults.length) section.append(html("ul", { class: "faults" }, ...faults.map((text) => html("li", {}, text))));
    return section;
  }

  function countFault(c) {
    const side = c.stance === "SUPPORT" ? "supporting" : "refuting";
    const why = c.stated === c.nodes_met ? ": it counts nodes, echoes included" : c.stated > c.acquired ? `: ${c.stated - c.acquired} too many` : `: ${c.acquired - c.stated} too few`;
    return `States ${c.stated} ${side}, read ${c.acquired}${why}.`;
  }

  function citationFault(c) {
    const what = c.status === "unknown" ? "no such source was shown" : c.status === "unread" ? `shown (${c.source_id}), its evidence never read` : "read";
    return `Cites ${c.label}: ${what}${c.times > 1 ? `; written ${c.times} times` : ""}.`;
  }

  function sourceLine(s, episode) {
    const read = s.read_step === null ? "never read" : `read at step ${s.read_step}${s.alias === null ? "" : ` (${s.alias})`}`;
    const echoes = s.echo_steps.length ? `, met again at ${s.echo_steps.join(", ")}` : "";
    return html("li", { class: `${s.stance.toLowerCase()}${s.read_step === null ? " unread" : ""}` }, html("i", { class: "dot" }), html("b", {}, s.label === null || s.label === s.source_id ? "" : `${s.label} `), html("span", { class: "id" }, s.source_id),
      html("span", { class: "how" }, `${plural(s.routes, "route", "routes")} · ${read}${echoes}`), html("span", { class: "cite" }, episode.verdict === null ? "" : s.cited ? "cited" : s.read_step === null ? "" : "not cited"));
  }

  function rewardOf(reward) {
    const section = html("section", { class: "reward" });
    const { terms, weights, name } = data.objectives[state.objective];
    if (!reward) { section.append(html("p", {}, "Not scored: no reward.")); return section; }
    const rows = terms.map((term, place) => html("tr", { class: weights[place] === 0 ? "idle" : null }, html("th", { scope: "row" }, term), html("td", {}, plain(reward.terms[place], 3)), html("td", {}, `× ${plain(weights[place])}`), html("td", {}, signed(reward.terms[place] * weights[place]))));
    section.append(html("h4", {}, "Reward ", html("small", {}, name)), html("table", { class: "counts" }, html("thead", {}, html("tr", {}, ...["term", "value", "weight", "adds"].map((t) => html("th", { scope: "col" }, t)))), html("tbody", {}, ...rows),
      html("tfoot", {}, html("tr", {}, html("th", { scope: "row" }, "total"), html("td"), html("td"), html("td", {}, html("b", {}, signed(reward.total)))))));
    return section;
  }

  // ---------------------------------------------------------------- showing
  const lastStep = () => Math.max(...state.panes.map((pane) => pane.episode.steps.length));

  function rebuild() {
    const walk = data.walks[state.walk];
    state.panes = state.shown.map((_, slot) => buildPane(walk, slot));
    byId("panes").replaceChildren(...state.panes.map((pane) => pane.root));
    byId("panes").classList.toggle("single", state.panes.length === 1);
    byId("b-range").max = lastStep();
    setStep(Math.min(state.step, lastStep()));
  }

  function showWalk(place, step) {
    state.walk = place;
    state.step = step;
    const walk = data.walks[place];
    byId("w-kicker").textContent = `${walk.condition} · ${walk.id}`;
    byId("w-claim").textContent = walk.claim;
    const [support, refute] = walk.available;
    byId("w-facts").replaceChildren(
      html("span", { class: "support" }, html("i", { class: "dot" }), `${support} supporting`), html("span", { class: "refute" }, html("i", { class: "dot" }), `${refute} refuting`),
      html("span", {}, plural(walk.routes, "route", "routes")), html("span", {}, `gold ${walk.gold}`), html("span", {}, `budget ${walk.budget}`), html("span", {}, `shown as ${walk.mitigation}`),
      ...(walk.member ? [html("span", {}, `sample ${walk.member + 1}`)] : []));
    rebuild();
    markList();
  }

  function setStep(step) {
    state.step = Math.max(0, Math.min(step, lastStep()));
    for (const pane of state.panes) pane.update(state.step);
    byId("b-range").value = state.step;
    const text = state.step === 0 ? "opening" : `step ${state.step} of ${lastStep()}`;
    byId("b-text").textContent = text;
    byId("b-range").setAttribute("aria-valuetext", text);
    byId("b-first").disabled = byId("b-back").disabled = state.step === 0;
    byId("b-next").disabled = byId("b-last").disabled = state.step === lastStep();
    byId("live").textContent = state.panes.map((pane) => {
      const done = pane.episode.steps[state.step - 1];
      if (state.step === 0) return `${data.policies[pane.policy]}: opening`;
      return done ? `${data.policies[pane.policy]}: ${short(done.action || "nothing", 60)}, ${KINDS[done.kind][1]}, ${done.left} left` : `${data.policies[pane.policy]}: ended`;
    }).join(". ");
    if (state.isReady) history.replaceState(null, "", `#walk=${state.walk}&step=${state.step}`);
  }

  function moveWalk(by) {
    const place = state.matches.indexOf(state.walk) + by;
    if (place >= 0 && place < state.matches.length) showWalk(state.matches[place], 0);
  }

  function onStageKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input")) return;
    const actions = { ArrowLeft: () => setStep(state.step - 1), ArrowRight: () => setStep(state.step + 1), Home: () => setStep(0), End: () => setStep(lastStep()), ArrowUp: () => moveWalk(-1), ArrowDown: () => moveWalk(1) };
    if (!(event.key in actions)) return;
    const inPane = event.target.closest(".pane") !== null && event.key.match(/Up|Down/);
    event.preventDefault();
    actions[event.key]();
    if (inPane) byId("stage").focus({ preventScroll: true }); // what had the focus is gone
  }

  function onListKey(event) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    moveWalk(by);
    const current = byId("list").querySelector('[aria-current="true"]');
    if (current) current.focus({ preventScroll: true });
  }

  function openFromHash() {
    const found = /^#walk=(\d+)&step=(\d+)$/.exec(location.hash);
    if (!found || Number(found[1]) >= data.walks.length) return false;
    showWalk(Number(found[1]), Number(found[2]));
    return true;
  }

  function startViewer() {
    const conditions = [...new Set(data.walks.map((walk) => walk.condition))];
    fill(byId("f-condition"), [["", "all conditions"], ...conditions.map((name) => [name, name])]);
    fill(byId("f-policy"), [["", "any policy"], ...data.policies.map((name, place) => [place, name])]);
    const hasMatch = ([name, wanted]) => name === "any outcome" || data.walks.some((walk) => walk.episodes.some((e) => wanted(e, walk.episodes)));
    fill(byId("f-outcome"), Object.entries(OUTCOMES).filter(hasMatch).map(([name]) => [name, name]));
    fill(byId("f-objective"), data.objectives.map((objective, place) => [place, objective.name]));
    for (const id of ["f-condition", "f-policy", "f-outcome"]) byId(id).addEventListener("change", () => applyFilters(true));
    byId("f-objective").addEventListener("change", () => { state.objective = Number(byId("f-objective").value); rebuild(); });
    byId("viewer").querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    byId("list").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) showWalk(Number(button.dataset.walk), 0);
    });
    byId("list").addEventListener("keydown", onListKey);
    byId("stage").addEventListener("keydown", onStageKey);
    byId("b-range").addEventListener("input", () => setStep(Number(byId("b-range").value)));
    const steps = { "b-first": () => 0, "b-back": () => state.step - 1, "b-next": () => state.step + 1, "b-last": lastStep };
    for (const [id, target] of Object.entries(steps)) byId(id).addEventListener("click", () => setStep(target()));
    byId("viewer").hidden = false;
    applyFilters(false);
    openFromHash();
    state.isReady = true; // from now on the address follows what is shown
    window.addEventListener("hashchange", openFromHash);
  }

  // ---------------------------------------------------------------- reading values off a curve
  function startCurve(figure) {
    const points = data.curves[figure.dataset.curve], [width, height] = data.curveSize;
    const readout = figure.querySelector(".readout"), text = document.querySelector(`[data-for="${CSS.escape(figure.dataset.curve)}"]`);
    const first = points[0][0], last = points[points.length - 1][0];
    figure.addEventListener("pointermove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(figure.getScreenCTM().inverse());
      const step = first + (Math.max(0, Math.min(width, at.x)) / width) * (last - first);
      const point = points.reduce((best, p) => (Math.abs(p[0] - step) < Math.abs(best[0] - step) ? p : best));
      const x = ((point[0] - first) / (last - first)) * width;
      const ends = figure.querySelector(".mean").points;
      readout.removeAttribute("hidden");
      readout.querySelector("line").setAttribute("x1", x);
      readout.querySelector("line").setAttribute("x2", x);
      readout.querySelector("circle").setAttribute("cx", x);
      readout.querySelector("circle").setAttribute("cy", Math.min(height, ends[points.indexOf(point)].y));
      text.textContent = `step ${point[0]}: ${plain(point[1], 3)}, mean ${plain(point[2], 3)}`;
    });
    figure.addEventListener("pointerleave", () => { readout.setAttribute("hidden", ""); text.textContent = ""; });
  }

  for (const figure of document.querySelectorAll("svg[data-curve]")) startCurve(figure);
  if (data.walks.length) startViewer();
})();
