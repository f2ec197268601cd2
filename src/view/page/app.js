// The frame of the page: pages by address, live updates, keys and theme.

import { address, errorElement, h, formatSeconds } from "./dom.js";
import * as curves from "./curves.js";
import * as group from "./group.js";
import * as lengths from "./lengths.js";
import * as prompts from "./prompts.js";
import * as round from "./round.js";
import * as runs from "./runs.js";
import * as tokens from "./tokens.js";

/** The pages by name. A page with a `title` has a tab; `tab` is the name of the tab that other pages mark. */
const PAGES = {
  runs: { title: "Runs", show: runs.showAll },
  run: { title: "Summary", show: runs.showOne },
  curves: { title: "Curves", show: curves.show },
  round: { title: "Round", show: round.show },
  distributions: { title: "Distributions", show: lengths.show },
  prompts: { title: "Prompts", show: prompts.show },
  group: { show: group.show, tab: "prompts" },
  response: { show: tokens.show, tab: "prompts" },
};

const KEYS = [
  ["1 … 6", "the tabs from the left"],
  ["j / k", "next or previous step, prompt, response or row"],
  ["Enter", "open the marked row"],
  ["u", "one level up"],
  ["/", "search"],
  ["0", "whole range of steps (curves)"],
  ["t", "light, dark or the system's theme"],
  ["?", "these keys"],
];

const main = document.getElementById("main");
const help = document.getElementById("help");
const picker = document.getElementById("run");

/** The state that all pages share: `runs`, the table of runs as the server sent it last, and `run`, the name of the shown run. */
const shared = { runs: [], run: null };
let page = null;
let latestRender = 0;

function route() {
  const [name, query = ""] = location.hash.slice(2).split("?");
  return { name: PAGES[name] ? name : "", params: new URLSearchParams(query) };
}

/** Returns the name of the run in the address, or of the run that was shown last, or of the first run; undefined without runs. */
function chosenRun(params) {
  const names = shared.runs.map((run) => run.name);
  const asked = params.get("run");
  if (asked !== null) return asked;
  return names.includes(shared.run) ? shared.run : names[0];
}

async function show() {
  const { name, params } = route();
  if (!name) {
    location.replace(shared.runs.length > 1 ? "#/runs" : "#/curves");
    return;
  }
  const render = ++latestRender;
  page?.close?.();
  page = null;
  shared.run = chosenRun(params);
  drawFrame(name);
  const root = h("div", { class: `page ${name}` });
  try {
    const next = await PAGES[name].show(root, params, shared);
    if (render !== latestRender) {
      next?.close?.();
      return;
    }
    page = next;
  } catch (error) {
    if (render !== latestRender) return;
    root.append(errorElement(error));
  }
  main.replaceChildren(root);
  page?.onShown?.();
}

function drawFrame(name) {
  const tab = PAGES[name].tab ?? name;
  const links = Object.entries(PAGES)
    .filter(([, own]) => own.title)
    .map(([own, { title }]) =>
      h("a", { href: address(own, own === "runs" ? {} : { run: shared.run }), "aria-current": own === tab && "page" }, title),
    );
  document.querySelector("nav").replaceChildren(...links);
  document.title = `${shared.run ?? "no run"} · rollpacker view`;
  // Replacing the options closes an open list, so they are replaced only if the names have changed.
  const names = shared.runs.map((run) => run.name);
  if (names.join("\n") !== [...picker.options].map((option) => option.value).join("\n")) {
    picker.replaceChildren(...names.map((own) => h("option", { value: own }, own)));
  }
  picker.value = shared.run ?? "";
  picker.hidden = shared.runs.length < 2;
  showStatus();
}

function showStatus(lost = false) {
  const element = document.getElementById("status");
  const run = shared.runs.find((own) => own.name === shared.run);
  if (lost || !run) {
    element.textContent = lost ? "the server has ended" : "";
    element.className = lost ? "lost" : "";
    return;
  }
  const state = runs.stateOf(run);
  element.textContent = `${state.text}, step ${run.steps}`;
  element.title = `last write ${formatSeconds(runs.secondsSinceWrite(run))} ago`;
  element.className = state.name;
}

picker.addEventListener("change", () => {
  const { name } = route();
  const kept = PAGES[name]?.title && name !== "runs" ? name : "curves";
  location.hash = address(kept, { run: picker.value });
});

function applyTheme(next) {
  const order = ["system", "light", "dark"];
  const now = localStorage.getItem("theme") ?? "system";
  const chosen = next ? order[(order.indexOf(now) + 1) % order.length] : now;
  localStorage.setItem("theme", chosen);
  document.documentElement.dataset.theme = chosen;
  if (next) show();
}

function toggleHelp() {
  if (help.open) {
    help.close();
    return;
  }
  const rows = KEYS.map(([key, text]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, text)));
  help.replaceChildren(h("h2", {}, "Keys"), h("table", {}, rows), h("form", { method: "dialog" }, h("button", {}, "Close")));
  help.showModal();
}

document.getElementById("theme").addEventListener("click", () => applyTheme(true));
document.getElementById("help-button").addEventListener("click", toggleHelp);

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || (help.open && event.key !== "?")) return;
  const tab = document.querySelectorAll("nav a")[Number(event.key) - 1];
  const action =
    page?.keys?.[event.key] ??
    { "?": toggleHelp, t: () => applyTheme(true), "/": () => document.querySelector("input[type=search]")?.focus() }[event.key] ??
    (tab && (() => tab.click()));
  if (!action) return;
  event.preventDefault();
  action();
});

window.addEventListener("hashchange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

function listen() {
  const events = new EventSource("/api/events");
  let first = true;
  events.addEventListener("runs", (event) => {
    shared.runs = JSON.parse(event.data);
    const { name } = route();
    if (first || !name) {
      first = false;
      show();
      return;
    }
    shared.run = chosenRun(route().params);
    drawFrame(name);
    page?.update?.();
  });
  events.onerror = () => showStatus(true);
}

applyTheme(false);
listen();
