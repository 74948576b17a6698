import { readFileSync } from "node:fs";

const base = "http://127.0.0.1:8080";
const key = readFileSync("petstore-data/first-key", "utf8").trim();
const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };

// Adds at most one pet.
async function add(pet) {
  const once = { ...headers, "Idempotency-Key": crypto.randomUUID() };
  for (const wait of [0.2, 0.5, 1, 2, 5]) {
    const request = { method: "POST", headers: once, body: JSON.stringify(pet) };
    const response = await fetch(`${base}/v1/pets`, request).catch(() => null);
    if (response?.ok) return response.json();
    const seconds = response ? response.headers.get("Retry-After") : wait;
    if (seconds === null) throw new Error((await response.json()).message);
    await new Promise((done) => setTimeout(done, 1000 * seconds));
  }
  throw new Error("the service does not respond");
}

// Yields every pet, page by page.
async function* pets(path = "/v1/pets?limit=100") {
  while (path) {
    const page = await fetch(base + path, { headers });
    if (!page.ok) throw new Error((await page.json()).message);
    yield* await page.json();
    path = page.headers.get("Link")?.match(/<([^>]*)>; rel="next"/)?.[1];
  }
}

console.log("added", await add({ name: "Bella", categoryId: 7 }));
for await (const pet of pets()) console.log(pet.id, pet.name);
