// The inventory page: everything it shows comes from this service's public API, with the key that the person enters.

const PAGE_SIZE = 20;
const REFRESH_EVERY_MS = 5_000;
// How long to wait before the same create is sent again; the last delay repeats.
const RETRY_PAUSES_MS = [500, 1_000, 2_000, 5_000];

const delay = (ms, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

// JavaScript numbers are exact up to 2^53 only, and ids are 64 bits wide: they are kept as text. The service writes
// compact JSON, and inside a JSON string every quote is escaped, so this pattern matches field names only.
function parsePets(text) {
  return JSON.parse(text.replace(/"(id|categoryId)":(-?\d+)/g, '"$1":"$2"'));
}

// ---------------------------------------------------------------- signing in and out

async function enter() {
  await call("v1/pets?limit=1");
  element("sign-in").hidden = true;
  element("store").hidden = element("sign-out").hidden = false;
}

const start = () => view.start();

function stop() {
  view.stop();
  attempt?.abort();
  element("store").hidden = true;
  element("rows").replaceChildren();
  element("add-form").reset();
}

// ---------------------------------------------------------------- the list

const view = {
  /** The `after` of each page from the first to the one that is shown. */
  trail: [null],
  status: "",
  next: null,
  total: 0,
  tag: null,
  shownIds: null,
  timer: null,
  /** Counts the requests: the response to an earlier one must not replace that of a later one. */
  question: 0,

  async start() {
    this.trail = [null];
    await this.load("list");
    this.schedule();
  },

  stop() {
    clearTimeout(this.timer);
    this.question += 1;
    this.tag = this.shownIds = null;
  },

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      if (!document.hidden) await this.load("refresh");
      if (key) this.schedule();
    }, REFRESH_EVERY_MS);
  },

  address() {
    const query = new URLSearchParams({ limit: PAGE_SIZE });
    if (this.status) query.set("status", this.status);
    const after = this.trail.at(-1);
    if (after !== null) query.set("after", after);
    return `v1/pets?${query}`;
  },

  async load(reason) {
    if (reason !== "refresh") this.tag = this.shownIds = null;
    const question = (this.question += 1);
    try {
      const headers = this.tag ? { "If-None-Match": this.tag } : {};
      const { response, text } = await call(this.address(), { headers });
      if (question !== this.question) return;
      element("list-error").textContent = "";
      element("freshness").textContent = `Up to date at ${new Date().toLocaleTimeString()}`;
      if (response.status === 304) return;
      this.tag = response.headers.get("ETag");
      this.total = Number(response.headers.get("Total-Count"));
      const link = /<([^>]*)>; rel="next"/.exec(response.headers.get("Link") ?? "");
      this.next = link && new URLSearchParams(link[1].split("?")[1]).get("after");
      this.show(parsePets(text), reason);
    } catch (failure) {
      if (question !== this.question || !key) return;
      if (failure.status === 401) return signOut(failure.message);
      element("list-error").textContent = `${failure.message} The list may be out of date.`;
    }
  },

  show(pets, reason) {
    const known = this.shownIds;
    const rows = pets.map((pet) => {
      const row = element("row").content.cloneNode(true).firstElementChild;
      const [id, name, category, status] = row.children;
      id.textContent = pet.id;
      name.firstElementChild.textContent = pet.name;
      category.textContent = pet.categoryId;
      status.firstElementChild.textContent = pet.status ?? "";
      if (pet.status) status.firstElementChild.classList.add(pet.status);
      row.classList.toggle("new", Boolean(known) && !known.has(pet.id));
      row.dataset.id = pet.id;
      return row;
    });
    element("rows").replaceChildren(...rows);
    this.shownIds = new Set(pets.map((pet) => pet.id));
    element("previous").disabled = this.trail.length === 1;
    element("next").disabled = this.next === null;
    const kind = this.status ? `${this.status} pets` : "pets";
    const all = this.total === 1 ? kind.slice(0, -1) : kind;
    element("pets-title").textContent = `${this.total.toLocaleString("en")} ${all}`;
    element("page-number").textContent = `Page ${this.trail.length}`;
    element("caption").textContent = `${kind}, page ${this.trail.length}`;
    element("empty").hidden = pets.length > 0;
    element("empty").textContent = `There are no ${kind} here.`;
    if (reason === "list") say(`${pets.length} ${kind} on page ${this.trail.length}`);
  },
};

element("view").addEventListener("change", (event) => {
  if (event.target.name !== "status") return;
  view.status = event.target.value;
  view.trail = [null];
  view.load("list");
});

element("next").addEventListener("click", () => {
  view.trail.push(view.next);
  view.load("list");
});

element("previous").addEventListener("click", () => {
  view.trail.pop();
  view.load("list");
});

// Looking a pet up by its id: the page that begins with it, in the unfiltered list.
element("view").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = element("find-id");
  const error = element("find-error");
  const wanted = field.value.trim();
  error.textContent = "";
  if (!/^[1-9]\d{0,18}$/.test(wanted)) {
    error.textContent = "An id is a whole number of at least 1.";
    field.focus();
    return;
  }
  const after = String(BigInt(wanted) - 1n);
  try {
    const { text } = await call(`v1/pets?limit=1&after=${after}`);
    if (parsePets(text)[0]?.id !== wanted) {
      error.textContent = `There is no pet with the id ${wanted}.`;
      field.focus();
      return;
    }
  } catch (failure) {
    if (failure.status === 401) return signOut(failure.message);
    error.textContent = failure.message;
    return;
  }
  element("view").elements.status.value = view.status = "";
  view.trail = after === "0" ? [null] : [null, after];
  await view.load("find");
  const row = element("rows").firstElementChild;
  row?.classList.add("new");
  say(`Pet ${wanted}: ${row?.children[1].textContent}`);
});

// ---------------------------------------------------------------- adding a pet

// One key per pet: a create that is sent again with the same key adds the pet only once. Edited fields get a new key.
let draft = { body: null, requestKey: null };
let attempt = null;

function draftBody() {
  const category = element("category").value.trim();
  const status = element("status").value;
  // Digits are sent as they were typed, so that large numbers stay exact; the service judges everything else.
  const number = /^-?(0|[1-9]\d*)$/.test(category) ? category : JSON.stringify(category);
  const fields = [`"name":${JSON.stringify(element("name").value)}`];
  if (category !== "") fields.push(`"categoryId":${number}`);
  if (status !== "") fields.push(`"status":${JSON.stringify(status)}`);
  return `{${fields.join(",")}}`;
}

function newRequestKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const FIELDS = { name: "name", categoryid: "category", status: "status" };

/** Puts each part of the service's message next to the field that it names, with the label of the field. */
function showFailure(message) {
  let first = null;
  const general = [];
  for (const part of message ? message.split("; ") : []) {
    const [field, ...rule] = part.split(" ");
    const id = FIELDS[field.toLowerCase()];
    if (id) {
      element(`${id}-error`).textContent = sentence([element(id).labels[0].textContent, ...rule].join(" "));
      element(id).setAttribute("aria-invalid", "true");
      first ??= element(id);
    } else {
      general.push(part);
    }
  }
  element("add-error").textContent = general.length > 0 ? sentence(general.join("; ")) : "";
  first?.focus();
}

function clearRefusal() {
  for (const id of Object.values(FIELDS)) {
    element(`${id}-error`).textContent = "";
    element(id).removeAttribute("aria-invalid");
  }
  element("add-error").textContent = "";
}

/** Sends the same create until the service has responded to it. */
async function create(body, requestKey, signal) {
  for (let attempts = 1; ; attempts += 1) {
    try {
      const { text } = await call("v1/pets", {
        method: "POST",
        headers: { "Content-Type": "application/json", "Idempotency-Key": requestKey },
        body,
        signal,
      });
      return parsePets(text);
    } catch (failure) {
      if (!failure.passes || signal.aborted) throw failure;
      element("add-error").textContent =
        `${failure.message} Trying again; the pet will be added only once (attempt ${attempts + 1}).`;
      const planned = RETRY_PAUSES_MS[Math.min(attempts, RETRY_PAUSES_MS.length) - 1];
      await delay(Math.max(planned, 1_000 * (failure.retryAfter ?? 0)), signal);
      if (signal.aborted) throw failure;
    }
  }
}

element("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (attempt) return;
  clearRefusal();
  const body = draftBody();
  if (draft.body !== body) draft = { body, requestKey: newRequestKey() };
  attempt = new AbortController();
  element("submit").disabled = true;
  element("give-up").hidden = false;
  try {
    const pet = await create(body, draft.requestKey, attempt.signal);
    draft = { body: null, requestKey: null };
    // The person may have begun to enter the next pet.
    if (draftBody() === body) {
      element("add-form").reset();
      element("name").focus();
    }
    say(`Added pet ${pet.id}`);
    await view.load("refresh");
  } catch (failure) {
    if (failure.status === 401) signOut(failure.message);
    else if (attempt?.signal.aborted) {
      showFailure("The pet may or may not have been added. To find out, submit it again unchanged: it will not be added twice.");
    } else showFailure(failure.message);
  } finally {
    attempt = null;
    element("submit").disabled = false;
    element("give-up").hidden = true;
  }
});

element("give-up").addEventListener("click", () => attempt?.abort());

// ---------------------------------------------------------------- the start

async function showPromise() {
  try {
    const state = await (await fetch("readyz", { cache: "no-store" })).json();
    const promise = state.durability?.promise;
    if (promise) element("promise").textContent = `Durability: ${promise}.`;
  } catch {
    // The list shows when the service does not respond.
  }
}

async function begin() {
  showPromise();
  key = remembered();
  if (!key) return askForKey();
  try {
    await enter();
  } catch (failure) {
    if (!failure.passes) forget();
    return askForKey(failure.message);
  }
  start();
}

begin();
