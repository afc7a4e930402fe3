"""gRPC of a whole platform: found by the address it prints, and a sleeping function woken."""

from __future__ import annotations

import json

import numpy as np
import tritonclient.grpc as triton

from support.instance_driver import FUNCTIONS
from support.journeys import Caller
from support.platform import Platform


def test_a_function_that_sleeps_is_a_model_that_is_ready(platform: Platform, caller: Caller) -> None:
    connection = json.loads((platform.data_dir / "connection.json").read_bytes())
    assert connection["grpc"] == platform.grpc != ""
    caller.deploy(FUNCTIONS / "arrays")
    headers = {"authorization": f"Bearer {platform.admin_key}"}
    x = triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), "f4"))
    with triton.InferenceServerClient(platform.grpc) as client:
        assert client.is_server_ready() and client.is_model_ready("arrays", headers=headers)
        answer = client.infer("arrays", [x], headers=headers, client_timeout=60)
        assert answer.as_numpy("total").tolist() == [4.0]
