from typing import Any

import samovar as sv


@sv.function(
    name="keeps-secrets",
    example={"user": {"name": "a"}},
    log=sv.Log(payload="full", redact=["$.user.token", "$.items[*].key"]),
)
def keeps_secrets(user: dict[str, Any], items: list[Any] | None = None) -> dict[str, Any]:
    if user.get("name") == "nobody":
        raise ValueError("there is no such user")
    return {"user": user, "items": items or []}
