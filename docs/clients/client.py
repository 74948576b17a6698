import json, re, time, uuid
from urllib import error, request

BASE = "http://127.0.0.1:8080"
KEY = open("petstore-data/first-key").read().strip()


def send(path, pet=None, **more):
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **more}
    body = json.dumps(pet).encode() if pet else None
    return request.urlopen(request.Request(BASE + path, body, headers), timeout=10)


def add(pet):
    """Adds at most one pet, however often the request is repeated; gives up after five attempts."""
    key = str(uuid.uuid4())
    for wait in (0.2, 0.5, 1, 2, 5):
        try:
            with send("/v1/pets", pet, **{"Idempotency-Key": key}) as response:
                return json.load(response)
        except error.HTTPError as failure:
            if "Retry-After" not in failure.headers:
                raise RuntimeError(json.load(failure)["message"]) from None
            wait = float(failure.headers["Retry-After"])
        except OSError:
            pass  # No response, or an incomplete one.
        time.sleep(wait)
    raise TimeoutError("the service does not respond")


def pets(path="/v1/pets?limit=100"):
    """Yields every pet, page by page."""
    while path:
        with send(path) as page:
            yield from json.load(page)
            link = re.search(r'<([^>]*)>; rel="next"', page.headers.get("Link", ""))
            path = link and link[1]


print("added", add({"name": "Bella", "categoryId": 7}))
for pet in pets():
    print(pet["id"], pet["name"])
