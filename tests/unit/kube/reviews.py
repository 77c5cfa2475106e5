"""TokenReviews as kube-apiserver v1.34.4 answered them; of the request only the token is taken out."""

from copy import deepcopy
from typing import Any

Body = dict[str, Any]
POD: Body = {
    "kind": "TokenReview",
    "apiVersion": "authentication.k8s.io/v1",
    "metadata": {},
    "spec": {"audiences": ["kuangchao-token-exchange"]},
    "status": {
        "authenticated": True,
        "user": {
            "username": "system:serviceaccount:default:default",
            "uid": "e678d55b-642a-4e70-a33d-02d4291fb980",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/credential-id": ["JTI=4b41fc61-1169-44ec-8755-2bc521a08a7e"],
                "authentication.kubernetes.io/pod-name": ["digits-abcdef-0-0"],
                "authentication.kubernetes.io/pod-uid": ["ffb12b0f-77f4-47b3-a1e0-cea3eac0205d"],
            },
        },
        "audiences": ["kuangchao-token-exchange"],
    },
}
"""Bound to a pod, for our audience."""
UNBOUND: Body = deepcopy(POD)
for _key in ("pod-name", "pod-uid"):
    del UNBOUND["status"]["user"]["extra"][f"authentication.kubernetes.io/{_key}"]
"""Of the same account, bound to nothing."""
DEFAULT_AUDIENCE: Body = {
    **POD,
    "status": {
        "user": {},
        "error": (
            '[invalid bearer token, token audiences ["https://kubernetes.default.svc.cluster.local"]'
            ' is invalid for the target audiences ["kuangchao-token-exchange"]]'
        ),
    },
}
GARBAGE: Body = {**POD, "status": {"user": {}, "error": "invalid bearer token"}}


def of(namespace: str, pod: str, uid: str, account: str = "default") -> Body:
    """The answer for a token that is bound to another pod."""
    body = deepcopy(POD)
    user = body["status"]["user"]
    user["username"] = f"system:serviceaccount:{namespace}:{account}"
    user["extra"]["authentication.kubernetes.io/pod-name"] = [pod]
    user["extra"]["authentication.kubernetes.io/pod-uid"] = [uid]
    return body
