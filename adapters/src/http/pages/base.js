"use strict";

// What the pages at / of both listeners have in common: calls of the service, and the key that a person enters. page.js
// follows in the same file. It has enter(), which shows the page or throws, start(), which keeps it up to date, and stop().

const RESPONSE_TIMEOUT_MS = 10_000;
const STORAGE_KEY = "petstore-api-key";

const element = (id) => document.getElementById(id);
const say = (text) => (element("announcement").textContent = text);
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");

/** An error in the service's own words. The status is `null` if there was no response. */
class RequestError extends Error {
  constructor(status, message, retryAfter) {
    super(sentence(message));
    this.status = status;
    this.retryAfter = retryAfter;
  }
  /** Whether the same request may succeed later. */
  get passes() {
    return this.status === null || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

// The key is kept in this variable, and in sessionStorage only if the person asked for that.
let key = null;

async function call(path, options = {}) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...options.headers };
  const signals = [AbortSignal.timeout(RESPONSE_TIMEOUT_MS), options.signal].filter(Boolean);
  let response;
  let text;
  try {
    response = await fetch(path, { ...options, headers, signal: anyOf(signals), cache: "no-store" });
    text = await response.text();
  } catch {
    throw new RequestError(null, "The service does not respond.");
  }
  if (response.ok || response.status === 304) return { response, text };
  let message = `The service returned status ${response.status}.`;
  try {
    message = JSON.parse(text).message ?? message;
  } catch {
    // Something between this page and the service, such as a proxy, sent its own error.
  }
  throw new RequestError(response.status, message, Number(response.headers.get("Retry-After")) || null);
}

// AbortSignal.any is younger than the browsers this page should work in.
function anyOf(signals) {
  const controller = new AbortController();
  for (const signal of signals) {
    if (signal.aborted) controller.abort();
    signal.addEventListener("abort", () => controller.abort(), { once: true });
  }
  return controller.signal;
}

// A browser may forbid storage altogether; then the key is remembered by this page alone.
function stored(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

const remembered = () => stored((storage) => storage.getItem(STORAGE_KEY));
const forget = () => stored((storage) => storage.removeItem(STORAGE_KEY));

function askForKey(message = "") {
  key = null;
  element("sign-in").hidden = false;
  element("key-error").textContent = message;
  element("key").focus();
}

function signOut(message) {
  stop();
  forget();
  element("sign-out").hidden = true;
  element("key").value = "";
  askForKey(message);
}

element("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const candidate = element("key").value.trim();
  element("key-error").textContent = "";
  try {
    if (!/^[\x21-\x7e]+$/.test(candidate)) throw new Error("Enter the API key exactly as you received it.");
    key = candidate;
    await enter();
  } catch (failure) {
    return askForKey(failure.message);
  }
  if (element("remember").checked) stored((storage) => storage.setItem(STORAGE_KEY, candidate));
  element("key").value = "";
  await start();
  document.querySelector("h2[tabindex]").focus();
});

element("sign-out").addEventListener("click", () => signOut());

