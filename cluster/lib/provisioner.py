#!/usr/bin/env python3
"""Give each claim of class kc-shared a folder of the machine, and take it back with the claim.

provisioner.py API-SERVER PKI-DIR VOLUMES-DIR GID

What a storage provisioner does in a real cluster, so that `helm install` needs no volume made by hand.
"""

import http.client
import json
import os
import shutil
import ssl
import sys
import time
import urllib.parse

CLASS = "kc-shared"
PROVISIONER = "kc.cluster/folder"


class Api:
    """The few API calls needed, with the admin's certificate."""

    def __init__(self, server, pki):
        self.address = urllib.parse.urlsplit(server).netloc
        self.context = ssl.create_default_context(cafile=os.path.join(pki, "ca.crt"))
        self.context.load_cert_chain(os.path.join(pki, "admin.crt"), os.path.join(pki, "admin.key"))

    def open(self, method, path, body=None, timeout=30.0):
        connection = http.client.HTTPSConnection(self.address, context=self.context, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        if response.status >= 300 and response.status not in (404, 409):
            raise OSError(f"{method} {path}: {response.status} {response.read(500)!r}")
        return response

    def get(self, path):
        return json.load(self.open("GET", path))

    def watch(self, path):
        """Yield once for each change, for a minute at most."""
        for _ in self.open("GET", path + "&watch=1&timeoutSeconds=60", timeout=90):
            yield


def provision(api, claim, root, gid):
    """Make the folder and the volume, already tied to the claim."""
    meta = claim["metadata"]
    name = "pvc-" + meta["uid"]
    path = os.path.join(root, name)
    os.makedirs(path, exist_ok=True)
    os.chown(path, gid, gid)
    os.chmod(path, 0o2770)
    spec = {
        "capacity": claim["spec"]["resources"]["requests"],
        "accessModes": claim["spec"]["accessModes"],
        "storageClassName": CLASS,
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "hostPath": {"path": path, "type": "Directory"},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": spec,
    }
    api.open("POST", "/api/v1/persistentvolumes", volume)
    print("made", path, "for", meta["namespace"] + "/" + meta["name"], flush=True)


def settle(api, root, gid):
    """One pass: a volume for each waiting claim, an end for each released volume of ours."""
    for claim in api.get("/api/v1/persistentvolumeclaims")["items"]:
        spec = claim["spec"]
        waiting = claim.get("status", {}).get("phase") == "Pending" and not spec.get("volumeName")
        if waiting and spec.get("storageClassName") == CLASS and "deletionTimestamp" not in claim["metadata"]:
            provision(api, claim, root, gid)
    for volume in api.get("/api/v1/persistentvolumes")["items"]:
        meta = volume["metadata"]
        ours = meta.get("annotations", {}).get("pv.kubernetes.io/provisioned-by") == PROVISIONER
        if ours and volume.get("status", {}).get("phase") in ("Released", "Failed"):
            shutil.rmtree(os.path.join(root, meta["name"]), ignore_errors=True)
            api.open("DELETE", "/api/v1/persistentvolumes/" + meta["name"])
            print("removed", meta["name"], flush=True)


def main():
    server, pki, root, gid = sys.argv[1:]
    api = Api(server, pki)
    while True:
        try:
            settle(api, root, int(gid))
            for _ in api.watch("/api/v1/persistentvolumeclaims?resourceVersion=0"):
                time.sleep(0.2)
                settle(api, root, int(gid))
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(error, flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main()
