"""The lab's calls: exact within their bounds, refused beyond them."""

import pytest
from starlette.testclient import TestClient

RANKS = "/v1/lab/ranks?valid_targets=30&valid_targets=10&loss_sum=60"


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("/v1/lab/binomial?p=1.0000001&n=20", "/p"),
        ("/v1/lab/binomial?p=-1e-9&n=20", "/p"),
        ("/v1/lab/binomial?p=NaN&n=20", "/p"),
        ("/v1/lab/binomial?p=0.5&n=0", "/n"),
        ("/v1/lab/binomial?p=0.5&n=1001", "/n"),
        ("/v1/lab/binomial?p=0.5", "/n"),
        (RANKS, "/loss_sum"),
        (f"{RANKS}&loss_sum=Infinity", "/loss_sum/1"),
        (f"{RANKS}&loss_sum=40&gradient_reducer=max", "/gradient_reducer"),
        ("/v1/lab/ranks?valid_targets=-1&loss_sum=0", "/valid_targets/0"),
        ("/v1/lab/ranks?valid_targets=9007199254740993&loss_sum=0", "/valid_targets/0"),
        ("/v1/lab/ranks?" + "&".join(["valid_targets=1&loss_sum=1"] * 65), "/valid_targets"),
    ],
)
def test_what_is_out_of_bounds_is_refused(client: TestClient, path: str, pointer: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422, answer.text
    assert [answer.json()["code"], answer.json()["pointer"]] == ["invalid_request", pointer]


def test_the_presets_are_answered(client: TestClient) -> None:
    found = [client.get(f"/v1/lab/binomial?p=0.5&n={n}").json() for n in (20, 100)]
    assert [(item["mean"], item["variance"], len(item["masses"])) for item in found] == [(0.5, 0.0125, 21), (0.5, 0.0025, 101)]
