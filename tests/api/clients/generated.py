"""Uses the client that openapi-python-client made from the document: adds pets, lists them page by page."""

import re
import sys

from pet_store_client import AuthenticatedClient
from pet_store_client.api.animals import create_pet, get_pet, list_pets
from pet_store_client.models import Error, NewPet, Pet, PetStatus

base, key = sys.argv[1:]
client = AuthenticatedClient(base_url=f"{base}/v1", token=key)

for name in ("Rex", "Bella", "Zoë"):
    pet = NewPet(name=name, category_id=7, status=PetStatus.SOLD)
    added = [create_pet.sync(client=client, body=pet, idempotency_key=f"add-{name.encode().hex()}") for _ in range(2)]
    assert isinstance(added[0], Pet) and added[0] == added[1], added
    print("added", added[0].id, added[0].name)

after, pets = 0, []
while True:
    page = list_pets.sync_detailed(client=client, limit=2, status=PetStatus.SOLD, after=after)
    assert page.status_code == 200, page
    pets += page.parsed
    following = re.search(r'after=(\d+)>; rel="next"', page.headers.get("link", ""))
    if not following:
        break
    after = int(following[1])
print("listed", [(pet.id, pet.name, pet.status.value) for pet in pets])

unchanged = list_pets.sync_detailed(client=client, limit=2, if_none_match=page.headers["etag"])
assert unchanged.status_code == 304, unchanged
assert get_pet.sync(1, client=client) == pets[0]
rejected = create_pet.sync(client=client, body=NewPet(name=" ", category_id=7))
assert isinstance(rejected, Error) and rejected.code == "invalid_request", rejected
print("rejected", rejected.message)
