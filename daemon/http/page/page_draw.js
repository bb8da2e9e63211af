// How the page draws: elements, numbers, tables, lines over time, the map. Text that came from marud is only ever the text of
// an element, never markup: processes and tenants choose their names themselves.
"use strict";

function element(tag, classes, ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

const byId = (id) => document.getElementById(id);

// Only when it differs, so that what somebody has marked or focused stays.
function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

// -- numbers ----------------------------------------------------------------------------------------------------------

function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) bytes /= 1024, ++unit;
  return `${bytes >= 99.95 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

function countText(count) {
  if (count < 10 && !Number.isInteger(count)) return count.toFixed(1);
  const units = ["", " k", " M", " G"];
  let unit = 0;
  while (count >= 99999.5 || (unit > 0 && count >= 999.5)) count /= 1000, ++unit;
  return `${unit > 0 && count < 99.95 ? count.toFixed(1) : Math.round(count)}${units[unit]}`;
}

const percentText = (share) => (share === null ? "–" : `${(share * 100).toFixed(1)} %`);

function durationText(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// -- tables -----------------------------------------------------------------------------------------------------------

// A bar that is so full, 0 to 1.
function bar(share) {
  const inside = element("i");
  inside.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return element("span", share >= 0.9 ? "bar full" : "bar", inside);
}

// columns: [heading, classes, row -> text or element]
function table(columns, rows, whenEmpty) {
  if (rows.length === 0) return element("p", "none", whenEmpty);
  const head = element("tr", "", ...columns.map(([heading, classes]) => element("th", classes, heading)));
  const body = rows.map((row) => element("tr", "", ...columns.map(([, classes, cell]) => element("td", classes, cell(row)))));
  return element("table", "", element("thead", "", head), element("tbody", "", ...body));
}

// -- lines over time --------------------------------------------------------------------------------------------------

function svgElement(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// samples: [{at: seconds, values: [number or null, ...]}], the last one being now. A null is a gap.
function chart(id, samples, names, top, show) {
  const now = samples.length > 0 ? samples[samples.length - 1].at : 0;
  const span = Math.min(600, Math.max(60, samples.length > 0 ? now - samples[0].at : 0));
  const latest = samples.length > 0 ? samples[samples.length - 1].values : names.map(() => null);
  const svg = svgElement("svg", {viewBox: "0 0 600 100", preserveAspectRatio: "none", "aria-hidden": "true"});
  names.forEach((name, line) => {
    let path = "", isDrawing = false;
    for (const sample of samples) {
      const value = sample.values[line];
      if (value === null || now - sample.at > span) {
        isDrawing = false;
        continue;
      }
      const x = (600 - (now - sample.at) / span * 600).toFixed(1), y = (98 - value / top * 96).toFixed(1);
      // A dot where nothing stands beside it.
      path += isDrawing ? `L${x} ${y}` : `M${x} ${y}h0.1`;
      isDrawing = true;
    }
    svg.append(svgElement("path", {class: line === 0 ? "first" : "second", d: path}));
  });
  const key = names.map((name, line) => element("span", line === 0 ? "first" : "second", `${name}: ${show(latest[line])}`));
  byId(id).setAttribute("aria-label", names.map((name, line) => `${name} ${show(latest[line])}`).join(", "));
  byId(id).replaceChildren(element("p", "ends", element("span", "", show(top)), element("span", "", `last ${durationText(span)}`)),
                           svg, element("p", "key", ...key));
}

// -- the map ----------------------------------------------------------------------------------------------------------

const HEAT_STEPS = [0, 0.1, 1, 10, 100, 1000];  // uses a second: above each the next colour begins
// The class of a cell and what it is called; of one that looks worse than it is, also what it means.
const STATES = {u: ["unused", "empty, nobody's"], r: ["owned", "rented"],
                o: ["orphaned", "no owner", "its client has ended; the blocks stay readable, and it waits for a new owner"],
                d: ["draining", "changing owner", "its blocks make room, and it goes to somebody else"],
                h: ["elsewhere", "another host's"]};

const heatOf = (uses) => HEAT_STEPS.filter((step) => uses > step).length;
// Neighbouring lanes get hues that are far apart; a lane keeps its hue.
const hueOf = (lane) => String((lane * 137.508 + 200) % 360);

function ownerText(owner) {
  return `process ${owner.pid} (${owner.command ?? "?"}), lane ${owner.lane}`;
}

function cellText(map, index) {
  const each = map.regions_per_cell, first = index * each, last = Math.min(first + each, map.regions) - 1;
  const cells = map.cells, owner = map.owners[cells.owner[index]];
  const which = first === last ? `Region ${first}` : `Regions ${first} to ${last}`;
  const [, name, meaning] = STATES[cells.states[index]];
  const whose = owner ? ownerText(owner) : meaning ? `${name} (${meaning})` : name;
  const pages = (last - first + 1) * map.region_pages;
  const idle = cells.idle_s[index];
  return `${which}: ${whose}; ${cells.used_pages[index]} of ${pages} pages in use; ` +
         (idle === null ? "no use seen" : `${cells.uses_per_s[index]} uses a second, the last ${durationText(idle)} ago`);
}

function drawMap(map, colour, chosen) {
  const grid = byId("map"), cells = map.cells, count = cells.states.length;
  grid.className = count > 400 ? "crowd" : count > 80 ? "many" : "";
  grid.setAttribute("aria-label", `${map.regions} regions of ${sizeText(map.region_bytes)}, by ${colour}`);
  while (grid.childElementCount > count) grid.lastElementChild.remove();
  while (grid.childElementCount < count) grid.append(element("i"));
  for (let index = 0; index < count; ++index) {
    const cell = grid.children[index], owner = map.owners[cells.owner[index]];
    const state = STATES[cells.states[index]][0], heat = heatOf(cells.uses_per_s[index]);
    let classes = colour === "heat" && state !== "unused" ? `heat-${heat}` : state;
    if (index === chosen) classes += " chosen";
    if (cell.className !== classes) cell.className = classes;
    const pages = map.region_pages * Math.min(map.regions_per_cell, map.regions - index * map.regions_per_cell);
    // A region that is rented and empty is still to be told from one that nobody rents.
    cell.style.setProperty("--full", (0.3 + 0.7 * Math.min(1, cells.used_pages[index] / pages)).toFixed(2));
    cell.style.setProperty("--hue", owner ? hueOf(owner.lane) : "0");
    cell.dataset.owner = owner ? owner.lane : state;
    cell.dataset.heat = heat;
  }
  drawLegend(map, colour);
}

function drawLegend(map, colour) {
  const entry = (classes, text, hue) => {
    const sign = element("i", classes);
    if (hue !== undefined) sign.style.setProperty("--hue", hue);
    return element("li", "", sign, text);
  };
  const entries = [];
  if (colour === "heat") {
    entries.push(entry("heat-0", "no use"));
    HEAT_STEPS.forEach((step, at) => entries.push(entry(`heat-${at + 1}`, step === 0 ? "a few" : `over ${step}`)));
    entries.push(element("li", "none", "uses a second"), entry("unused", STATES.u[1]));
  } else {
    for (const owner of map.owners.slice(0, 24))
      entries.push(entry("owned", `${ownerText(owner)}: ${owner.regions}`, hueOf(owner.lane)));
    const others = map.owners.length - 24 + map.owners_left_out;
    if (others > 0) entries.push(element("li", "none", `and ${others} more`));
    for (const [letter, [classes, name, meaning]] of Object.entries(STATES)) {
      const cells = [...map.cells.states].filter((state) => state === letter).length;
      if (letter === "r" || cells === 0) continue;
      const counted = map.regions_per_cell === 1 ? `${name}: ${cells}` : name;
      entries.push(entry(classes, meaning ? `${counted} (${meaning})` : counted));
    }
    entries.push(element("li", "none", "the paler, the emptier"));
  }
  byId("legend").replaceChildren(...entries);
}
