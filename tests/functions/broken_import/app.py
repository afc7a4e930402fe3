import samovar as sv


@sv.function(name="broken-import")
def broken_import(text: str) -> str:
    return text


if __name__ == "app":
    import not_installed_anywhere  # noqa: F401
