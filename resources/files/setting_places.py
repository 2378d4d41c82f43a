"""Places that settings name: what is wrong with one before anything is looked for in it.

Put here what is read otherwise by one library than by another. What a store's object may not be called is `object_names`'.
"""

from __future__ import annotations

import os
from pathlib import Path

from resources.files.object_names import ambiguous
from resources.files.places import is_place_of_s3
from resources.files.s3_objects import without_user


def require_whole_in_uris(name: str, place: str) -> None:
    """Refuse a place whose name Spark, PyIceberg and SQLAlchemy cut, each on its own: files would be looked for elsewhere."""
    if cut := sorted({"#", "?"} & set(place)):
        raise ValueError(
            f"{name} is {place}: {' and '.join(cut)} would end its path where it is read as a URI; name a place without"
        )
    if "://" in place and not place.startswith("file:") and (wrong := ambiguous(place)):
        raise ValueError(f"{name} is {place!a}, and has {wrong}: objects of a store would be looked for elsewhere")


def folders_of_tables(folders: list[str], home: Path, warehouse: str) -> list[str]:
    """Return folders of tables, without what their paths do not need: Spark's sessions get each as a mount.

    Refused are those that are no absolute paths, lie in one another, or in or around the home folder or the warehouse, links
    followed: a transform reads and writes below them, and evidence and ledger are none of its business.
    """
    own = {"the home folder": home.resolve()}
    if warehouse.startswith("file:"):
        own["the warehouse"] = Path(warehouse.removeprefix("file://").removeprefix("file:")).resolve()
    found: dict[str, Path] = {}
    for folder in folders:
        require_whole_in_uris("table_folders", folder)
        require_one_line("table_folders", folder)
        if not folder.startswith("/") or "://" in folder:
            raise ValueError(f"table_folders has {folder!r}: each is the absolute path of a local folder")
        place = Path(folder).resolve()
        for name, other in (own | found).items():
            if place == other or place in other.parents or other in place.parents:
                raise ValueError(
                    f"table_folders has {folder!r}, which lies in or around {name} ({other}): name another folder"
                )
        found[repr(folder)] = place
    return [os.path.normpath(folder) for folder in folders]


def require_evidence_place(place: str, warehouse: str) -> None:
    """Refuse a place of the evidence that is no prefix of a bucket, or lies in or around the warehouse.

    Files of the warehouse that no table has are deleted by `backfill gc`, and Spark writes there.
    """
    if not is_place_of_s3(place):
        raise ValueError(
            f"evidence is {without_user(place)!a}: it is s3://bucket/prefix, the prefix in plain letters; without it, evidence is kept in the "
            "folder evidence of the home folder"
        )
    own, other = (f"{one.partition('://')[2].rstrip('/')}/" for one in (place, warehouse))
    if warehouse.lower().startswith(("s3:", "s3a:", "s3n:")) and (own.startswith(other) or other.startswith(own)):
        raise ValueError(
            f"evidence is {place}, which lies in or around the warehouse ({warehouse}): name another prefix, or a bucket of its own"
        )


def require_one_line(name: str, place: str) -> None:
    """Refuse a place with what Python leaves out of a URI: it would be another place. The message has no URL: it may hold a password."""
    if left_out := sorted({"\t", "\n", "\r"} & set(place)):
        raise ValueError(
            f"{name} has {' and '.join(map(ascii, left_out))} in it, which is left out where it is read as a URI: that is another "
            "place; name one without"
        )
