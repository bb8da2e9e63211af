// The page of maru-tierd: asks it every two seconds and shows its tiers. What has grown since the last answer is reckoned here,
// so a picture over time begins when the page is opened.
"use strict";

const PAUSE_MS = 2000, PATIENCE_MS = 10000, SAMPLES_MAX = 320;

let last = null;  // {at, pid, totals} of the last answer
let lostSince = null;
let timer = 0;
let isAsking = false;
const samples = [];  // [{at, hits, loaded, stored}]

async function ask(path) {
  const response = await fetch(path, {headers: {Accept: "application/json"}, cache: "no-store",
                                      signal: AbortSignal.timeout(PATIENCE_MS)});
  const answer = await response.json();
  // A healthcheck that is not healthy is an answer as well.
  if (!response.ok && !("reasons" in answer)) throw new Error(answer.error ?? `status ${response.status}`);
  return answer;
}

// -- what has grown ---------------------------------------------------------------------------------------------------

const ratio = (part, whole) => (whole > 0 ? part / whole : null);

function remember(status) {
  const at = performance.now() / 1000, totals = {};
  for (const name of ["hits", "misses", "loaded_bytes", "stored_bytes"])
    totals[name] = status.tiers.reduce((sum, tier) => sum + tier[name], 0);
  const before = last;
  last = {at, pid: status.pid, totals};
  if (!before || before.pid !== status.pid) return;
  const grown = (name) => Math.max(0, totals[name] - before.totals[name]), seconds = at - before.at;
  samples.push({at, hits: ratio(grown("hits"), grown("hits") + grown("misses")), loaded: grown("loaded_bytes") / seconds,
                stored: grown("stored_bytes") / seconds});
  if (samples.length > SAMPLES_MAX) samples.shift();
}

// -- drawing ----------------------------------------------------------------------------------------------------------

const speedText = (bytes) => (bytes > 0 ? `${sizeText(bytes)}/s` : "–");

function drawTiers(tiers) {
  const room = (tier) => {
    const cell = element("span", "", sizeText(tier.entry_bytes));
    if (tier.capacity_bytes > 0) cell.append(bar(tier.physical_bytes / tier.capacity_bytes));
    return cell;
  };
  const breaker = (tier) => element("span", tier.breaker === "closed" ? "" : "pill bad", tier.breaker);
  byId("tiers").replaceChildren(
      table([["Tier", "", (tier) => tier.name], ["Kind", "roomy", (tier) => tier.kind],
             ["Entries", "number roomy", (tier) => countText(tier.entries)], ["Bytes", "number", room],
             ["Room", "number roomy", (tier) => (tier.capacity_bytes > 0 ? sizeText(tier.capacity_bytes) : "no limit")],
             ["Hits", "number", (tier) => percentText(ratio(tier.hits, tier.hits + tier.misses))],
             ["Loaded", "number roomy", (tier) => `${countText(tier.loads)}, ${sizeText(tier.loaded_bytes)}`],
             ["Load speed", "number roomy", (tier) => speedText(tier.load_bytes_per_second)],
             ["Stored", "number roomy", (tier) => `${countText(tier.stores)}, ${sizeText(tier.stored_bytes)}`],
             ["Store speed", "number roomy", (tier) => speedText(tier.store_bytes_per_second)],
             ["Queue", "number roomy", (tier) => countText(tier.queue + tier.in_flight)],
             ["Failures", "number roomy", (tier) => countText(tier.failures)], ["Breaker", "", breaker]],
            tiers, "No tier is configured."));
}

function drawHistory() {
  chart("hits", samples.map(({at, hits}) => ({at, values: [hits]})), ["lookups"], 1, percentText);
  const most = Math.max(1, ...samples.flatMap(({loaded, stored}) => [loaded, stored]));
  chart("rates", samples.map(({at, loaded, stored}) => ({at, values: [loaded, stored]})), ["loaded", "stored"], most,
        (value) => (value === null ? "–" : sizeText(value)));
}

// -- asking -----------------------------------------------------------------------------------------------------------

function say(text) {
  setText("notice", text);
  byId("notice").hidden = text === "";
}

function sayHealth(text, kind) {
  setText("health", text);
  byId("health").className = `pill ${kind}`;
}

async function look() {
  const status = await ask("status"), health = await ask("healthcheck");
  remember(status);
  setText("about", `pool ${status.pool}, process ${status.pid}`);
  sayHealth(health.status, health.status === "healthy" ? "good" : health.status === "degraded" ? "" : "bad");
  byId("attention").replaceChildren(...health.reasons.map((reason) => element("li", "", reason)));
  setText("work", `${countText(status.queued)} blocks wait to be written. Of the pool, ${sizeText(status.pinned_bytes)} are kept ` +
                  `for writing, and ${sizeText(status.loading_bytes)} are being loaded.`);
  byId("picture").hidden = false;
  drawTiers(status.tiers);
  drawHistory();
}

async function turn() {
  clearTimeout(timer);
  if (isAsking || document.hidden) return;
  isAsking = true;
  try {
    await look();
    lostSince = null;
    say("");
  } catch (error) {
    lostSince ??= new Date().toLocaleTimeString();
    sayHealth("no answer", "bad");
    say(`maru-tierd has not answered since ${lostSince} (${error.message}). What is shown is old; trying again.`);
  }
  isAsking = false;
  document.body.classList.toggle("stale", lostSince !== null);
  timer = setTimeout(turn, PAUSE_MS);
}

document.addEventListener("visibilitychange", turn);
turn();
