"""Checks an export without petstore: check-export.py FILE"""
import hashlib, json, sys
head = hashlib.sha256().hexdigest()
for line in open(sys.argv[1], "rb"):
    record, fields = line.rstrip(b"\n"), json.loads(line)
    if "manifest" in fields:
        print(f"verified: {head}") if fields["manifest"]["head"] == head else sys.exit("wrong head hash")
        break
    if fields["previous"] != head:
        sys.exit(f"position {fields['position']} does not follow the records before it")
    head = hashlib.sha256(record).hexdigest()
else:
    sys.exit("the manifest is missing")
