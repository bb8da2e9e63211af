// The page: asks marud every two seconds and shows what it says. What has grown since the last answer is reckoned here, so a
// picture over time begins when the page is opened. The token, where one is wanted, stays in a variable.
"use strict";

const PAUSE_MS = 2000, PAUSE_MAX_MS = 10000, PATIENCE_MS = 10000, SAMPLES_MAX = 320, ROWS_MAX = 100;

let token = "";
let chosenPool = null;   // name
let chosenCell = null;   // index
let shown = null;        // {map, ...} of the last answer
let failures = 0;
let lostSince = null;
let farewell = "";       // to a pool that was looked at and is gone, until another one is chosen
let timer = 0;
let isAsking = false;
const before = new Map();   // by pool: the last row of /status
const history = new Map();  // by pool: [{at, ...}]

class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(path) {
  const headers = {Accept: "application/json"};
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, {headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS)});
  const text = await response.text();
  let answer = {};
  try {
    answer = JSON.parse(text);
  } catch {
    throw new Refusal(response.status, `found an answer that is not JSON (status ${response.status})`);
  }
  // A healthcheck that is not healthy is an answer as well.
  if (!response.ok && !("reasons" in answer)) throw new Refusal(response.status, answer.error ?? `status ${response.status}`);
  return answer;
}

// What a pool cannot be asked for any more is not there.
async function askAbout(path, name, otherwise) {
  try {
    return await ask(`${path}?pool=${encodeURIComponent(name)}`);
  } catch (error) {
    if (error instanceof Refusal && (error.status === 404 || error.status === 503)) return otherwise;
    throw error;
  }
}

// -- what has grown ---------------------------------------------------------------------------------------------------

const ratio = (part, whole) => (whole > 0 ? Math.min(1, part / whole) : null);

function remember(status, pool, at) {
  const row = {at, pid: status.pid, epoch: pool.epoch, counters: pool.counters, evicted: pool.evicted_blocks};
  const last = before.get(pool.name);
  before.set(pool.name, row);
  if (!pool.counters || !last || !last.counters || last.pid !== row.pid || last.epoch !== row.epoch) return;
  const seconds = at - last.at;
  const grown = (name) => Math.max(0, row.counters[name] - last.counters[name]);
  const samples = history.get(pool.name) ?? [];
  samples.push({at, prefixes: ratio(grown("match_blocks"), grown("match_keys")),
                reads: ratio(grown("retrieve_hits"), grown("retrieve_hits") + grown("retrieve_misses")),
                stored: grown("stores") / seconds, evicted: Math.max(0, row.evicted - last.evicted) / seconds});
  if (samples.length > SAMPLES_MAX) samples.shift();
  history.set(pool.name, samples);
}

// -- drawing ----------------------------------------------------------------------------------------------------------

function drawPools(pools) {
  const buttons = pools.map((pool) => {
    const isServing = pool.counters !== undefined;
    const bytes = isServing ? pool.pages * pool.page_bytes : 0;
    const button = element("button", "pool", element("b", "", pool.name));
    if (isServing) {
      button.append(bar(bytes > 0 ? pool.in_use_bytes / bytes : 0),
                    element("span", "", `${sizeText(pool.in_use_bytes)} of ${sizeText(bytes)} in use`),
                    element("span", "", `${countText(pool.blocks)} blocks, ${pool.policy}${pool.is_evicting ? ", evicting" : ""}`));
    }
    if (pool.condition !== "serving") button.append(element("span", "", pool.condition));
    button.type = "button";
    button.dataset.pool = pool.name;
    button.setAttribute("aria-pressed", String(pool.name === chosenPool));
    return button;
  });
  const focused = document.activeElement?.dataset?.pool;
  byId("pools").replaceChildren(...buttons);
  if (focused !== undefined) buttons.find((button) => button.dataset.pool === focused)?.focus();
}

function drawAttention(pool, reasons) {
  const lines = [...reasons];
  if (pool.pins_overdue > 0) lines.push(`${pool.pins_overdue} pins are overdue: marudctl pins --overdue`);
  byId("attention").replaceChildren(...lines.map((line) => element("li", "", line)));
}

function drawHistory(samples) {
  chart("hits", samples.map(({at, prefixes, reads}) => ({at, values: [prefixes, reads]})), ["prefixes", "reads"], 1,
        percentText);
  const most = Math.max(1, ...samples.flatMap(({stored, evicted}) => [stored, evicted]));
  chart("rates", samples.map(({at, stored, evicted}) => ({at, values: [stored, evicted]})), ["stored", "evicted"], most,
        (value) => (value === null ? "–" : countText(value)));
}

function drawClients(clients) {
  const hits = ({counters: c}) => (c ? ratio(c.match_blocks + c.retrieve_hits, c.match_keys + c.retrieve_hits + c.retrieve_misses)
                                     : null);
  const rows = [...clients].sort((a, b) => (b.region_bytes ?? 0) - (a.region_bytes ?? 0) || a.pid - b.pid);
  const list = table([["Process", "", (row) => row.pid], ["Command", "", (row) => row.command],
                      ["User", "number roomy", (row) => row.uid], ["Lane", "number roomy", (row) => row.lane],
                      ["State", "roomy", (row) => row.state], ["Rented", "number", (row) => sizeText(row.region_bytes ?? 0)],
                      ["Pins", "number", (row) => countText(row.pins ?? 0)],
                      ["Stored", "number", (row) => countText(row.counters?.stores ?? 0)],
                      ["Found", "number roomy", (row) => percentText(hits(row))]],
                     rows.slice(0, ROWS_MAX), "No process is attached.");
  const more = rows.length > ROWS_MAX ? [element("p", "none", `and ${rows.length - ROWS_MAX} more: marudctl clients`)] : [];
  byId("clients").replaceChildren(list, ...more);
}

function drawTenants(tenants, othersBytes) {
  const others = othersBytes > 0 ? [{nobody: true, used_bytes: othersBytes}] : [];
  const rows = [...tenants, ...others].sort((a, b) => b.used_bytes - a.used_bytes);
  const limit = (row) => row.soft_bytes || row.hard_bytes;
  const limitText = (bytes) => (bytes === 1 ? "nothing" : bytes ? sizeText(bytes) : "no limit");  // no block has one byte
  const use = (row) => {
    const cell = element("span", "", sizeText(row.used_bytes));
    if (limit(row)) cell.append(bar(row.used_bytes / limit(row)));
    return cell;
  };
  const list = table([["Tenant", "", (row) => (row.nobody ? element("span", "none", "no tenant") : row.tenant ?? `id:${row.id}`)], ["Uses", "number", use],
                      ["May use", "number", (row) => limitText(limit(row))]],
                     rows.slice(0, ROWS_MAX), "No tenant has stored anything or has a limit.");
  const more = rows.length > ROWS_MAX ? [element("p", "none", `and ${rows.length - ROWS_MAX} more: marudctl quota list`)] : [];
  byId("tenants").replaceChildren(list, ...more);
}

const REASONS = {request: "a client asked for memory", background: "high watermark", takeover: "region for another client",
                 expired: "time was over", admin: "by an administrator"};

function drawEvictions(pool) {
  const rows = Object.entries(pool.evicted_by ?? {}).sort(([, a], [, b]) => b - a);
  const most = Math.max(1, ...rows.map(([, count]) => count));
  byId("evictions").replaceChildren(
      table([["Reason", "", ([reason]) => REASONS[reason] ?? reason], ["Blocks", "number", ([, count]) => countText(count)],
             ["", "roomy", ([, count]) => bar(count / most * 0.89)]], rows, "The pool does not serve."));
}

function drawAdapters(users) {
  byId("adapters").hidden = users.length === 0;
  const resident = (form) => (row) => `${countText(row[form + "_adapters"])}, ${sizeText(row[form + "_bytes"])}`;
  byId("adapters").lastElementChild.replaceChildren(
      table([["User", "", (row) => row.uid], ["Adapters", "number", (row) => countText(row.adapters)],
             ["HOT", "number", resident("hot")], ["WARM", "number roomy", resident("warm")],
             ["Found HOT", "number", (row) => percentText(row.hot_ratio ?? null)],
             ["Found WARM", "number roomy", (row) => percentText(row.warm_ratio ?? null)],
             ["Loads", "number", (row) => countText(row.loads)], ["Read", "number roomy", (row) => sizeText(row.loaded_bytes)],
             ["Promoted", "number roomy", (row) => countText(row.promotions)]],
            users, "No user has adapters."));
}

function drawChosen() {
  const map = shown?.map, colour = document.querySelector("#colours :checked").value;
  byId("map").parentElement.hidden = !map;
  if (!map) return;
  if (chosenCell !== null && chosenCell >= map.cells.states.length) chosenCell = null;
  drawMap(map, colour, chosenCell);
  if (chosenCell !== null) setText("cell", cellText(map, chosenCell));
}

// -- asking -----------------------------------------------------------------------------------------------------------

function say(text) {
  setText("notice", text);
  byId("notice").hidden = text === "";
}

// Which pool is looked at: the one that was, or the first. What somebody looked at and is gone is said.
function choosePool(pools) {
  const names = pools.map((pool) => pool.name);
  for (const name of [...before.keys()].filter((name) => !names.includes(name))) {
    before.delete(name);
    history.delete(name);
  }
  if (names.includes(chosenPool)) return;
  if (chosenPool !== null) farewell = `The pool "${chosenPool}" was removed.`;
  chosenPool = names[0] ?? null;
  chosenCell = null;
}

async function look() {
  const status = await ask("status"), health = await ask("healthcheck");
  choosePool(status.pools);
  const at = performance.now() / 1000;
  for (const pool of status.pools) remember(status, pool, at);
  setText("about", `${status.version}, process ${status.pid}, up ${durationText(status.uptime_ms / 1000)}`);
  const pill = byId("health");
  pill.className = `pill ${health.status === "healthy" ? "good" : health.status === "degraded" ? "" : "bad"}`;
  setText("health", health.status);
  let pool, map, clients, tenants, adapters;
  do {  // again where another pool was chosen meanwhile: one picture is of one pool
    pool = status.pools.find((row) => row.name === chosenPool);
    map = pool ? await askAbout("map", pool.name, null) : null;
    clients = pool ? await askAbout("clients", pool.name, {clients: []}) : {clients: []};
    tenants = pool ? await askAbout("tenants", pool.name, {tenants: []}) : {tenants: []};
    adapters = pool ? await askAbout("adapters", pool.name, {adapters: []}) : {adapters: []};
  } while (pool && pool.name !== chosenPool);
  shown = {map};
  byId("login").hidden = true;
  byId("picture").hidden = false;
  byId("pool").hidden = !pool;
  drawPools(status.pools);
  if (pool) {
    drawAttention(pool, health.reasons);
    drawChosen();
    drawHistory(history.get(pool.name) ?? []);
    drawClients(clients.clients);
    drawTenants(tenants.tenants, tenants.others_used_bytes ?? 0);
    drawEvictions(pool);
    drawAdapters(adapters.adapters);
  }
  say(farewell || (pool ? "" : "marud has no pool."));
}

function fail(error) {
  const pill = byId("health");
  pill.className = "pill bad";
  if (error instanceof Refusal && error.status === 401) {
    setText("health", "token wanted");
    say(token ? "marud does not know this token." : "");
    token = "";
    byId("picture").hidden = true;
    byId("login").hidden = false;
    byId("token").focus();
    return;
  }
  const isAnswer = error instanceof Refusal;
  lostSince ??= new Date().toLocaleTimeString();
  setText("health", isAnswer ? "refused" : "no answer");
  say(isAnswer ? `marud refuses: ${error.message}. Trying again.`
               : `marud has not answered since ${lostSince}. What is shown is old; trying again.`);
}

async function turn() {
  clearTimeout(timer);
  if (isAsking || document.hidden) return;
  isAsking = true;
  try {
    await look();
    failures = 0;
    lostSince = null;
  } catch (error) {
    ++failures;
    fail(error);
  }
  isAsking = false;
  document.body.classList.toggle("stale", failures > 0);
  if (byId("login").hidden) timer = setTimeout(turn, Math.min(PAUSE_MAX_MS, PAUSE_MS * Math.max(1, failures)));
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  turn();
});
byId("pools").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  farewell = "";
  chosenPool = button.dataset.pool;
  chosenCell = null;
  setText("cell", "Point at a region, or touch it.");
  for (const other of byId("pools").children) other.setAttribute("aria-pressed", String(other === button));
  turn();
});
byId("colours").addEventListener("change", drawChosen);
for (const kind of ["click", "pointerover"])
  byId("map").addEventListener(kind, (event) => {
    if (event.target === byId("map")) return;
    chosenCell = [...byId("map").children].indexOf(event.target);
    drawChosen();
  });
document.addEventListener("visibilitychange", turn);
turn();
