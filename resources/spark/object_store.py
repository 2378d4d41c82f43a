"""Spark's settings for tables in S3, derived from the properties of the catalog: a team states its endpoint and keys once.

Put here how PyIceberg's words for a store are said to Hadoop's S3A, and which classes Spark needs for it. That these settings
are a session's own, and never on the command line of the JVM, is `sessions`'.

How files come about in S3: Spark's own committer renames what tasks have written, and S3 has no rename; it would copy each
file twice, one after the other. S3A's magic committer begins each file under its final name as an upload that nobody sees, and
the commit of the job completes the uploads of those tasks that were committed: a task that failed, ran twice, or was still
writing when the driver ended leaves no file at all, and none is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from manifests.errors import EnvironmentRefused, Problem
from manifests.text import words_of
from resources.spark import pyspark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_PROTOCOL = "spark.sql.sources.commitProtocolClass"
COMMITTER = "spark.sql.parquet.output.committer.class"
_SCHEMES = ("s3", "s3a", "s3n")
_LOCAL = ("file:", "/")
_S3A = "org.apache.hadoop.fs.s3a"
_CLOUD = "org.apache.spark.internal.io.cloud"
_OF_SPARK = {
    **{f"fs.{scheme}.impl": f"{_S3A}.S3AFileSystem" for scheme in _SCHEMES},
    **{f"fs.AbstractFileSystem.{scheme}.impl": f"{_S3A}.S3A" for scheme in _SCHEMES},
    **{
        f"mapreduce.outputcommitter.factory.scheme.{scheme}": f"{_S3A}.commit.S3ACommitterFactory"
        for scheme in _SCHEMES
    },
    "fs.s3a.committer.name": "magic",
    COMMIT_PROTOCOL: f"{_CLOUD}.PathOutputCommitProtocol",
    COMMITTER: f"{_CLOUD}.BindingParquetOutputCommitter",
    # in memory until it is sent: in confined sessions Hadoop has no local file system to keep it in
    "fs.s3a.fast.upload.buffer": "bytebuffer",
    "fs.s3a.multipart.size": "8M",
    # a look at a file, or at a part of it, is a request: many are asked for at once
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "32",
    "parquet.hadoop.vectored.io.enabled": "true",
}
_CREDENTIALS = {
    "access.key": ("s3.access-key-id", "client.access-key-id"),
    "secret.key": ("s3.secret-access-key", "client.secret-access-key"),
    "session.token": ("s3.session-token", "client.session-token"),
}
_PROVIDER = "fs.s3a.aws.credentials.provider"
_OF_THE_ENVIRONMENT = frozenset(
    [
        *("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN"),
        *("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    ]
)
"""Variables by which Hadoop, and the SDK of AWS, find keys."""
_SDK = "software.amazon.awssdk.services.s3.S3Client"


def says_where(catalog: Mapping[str, str]) -> bool:
    """Whether properties say where the warehouse is; of a catalog's server they may have its name alone."""
    warehouse = catalog.get("warehouse", "")
    return "://" in warehouse or warehouse.startswith(_LOCAL)


def is_in_s3(catalog: Mapping[str, str]) -> bool:
    """Whether the tables of a catalog are in S3, or may be: its warehouse is there, or is no local folder and S3 is spoken of."""
    warehouse = catalog.get("warehouse", "")
    if warehouse.startswith(_LOCAL):
        return False
    return warehouse.partition("://")[0] in _SCHEMES or any(name.startswith("s3.") for name in catalog)


def s3_settings(catalog: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which Spark's sessions read and write tables in S3; none where no table is there.

    Args:
        catalog: the properties of the catalog, in PyIceberg's words.
        own: what the installation sets for Spark itself: it goes before, also as `spark.hadoop.*`.
    """
    if not is_in_s3(catalog):
        return {}
    wanted = _OF_SPARK | _connection(catalog) | _credentials(catalog)
    return {name: value for name, value in wanted.items() if f"spark.hadoop.{name}" not in own}


def _connection(catalog: Mapping[str, str]) -> dict[str, str]:
    found = {}
    if endpoint := catalog.get("s3.endpoint"):
        virtual = catalog.get("s3.force-virtual-addressing", "").lower() in {"true", "1", "yes"}
        found = {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "false" if virtual else "true"}
    if region := catalog.get("s3.region") or catalog.get("client.region"):
        found["fs.s3a.endpoint.region"] = region
    return found


def _credentials(catalog: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials that the catalog has; where it has none, Hadoop looks for them as PyArrow does: on the machine."""
    if catalog.get("s3.anonymous", "").lower() in {"true", "1", "yes"}:
        return {_PROVIDER: f"{_S3A}.AnonymousAWSCredentialsProvider"}
    found = {
        f"fs.s3a.{name}": value
        for name, sources in _CREDENTIALS.items()
        if (value := next((catalog[one] for one in sources if catalog.get(one)), ""))
    }
    if not {"fs.s3a.access.key", "fs.s3a.secret.key"} <= found.keys():
        return {}
    kind = "TemporaryAWSCredentialsProvider" if "fs.s3a.session.token" in found else "SimpleAWSCredentialsProvider"
    return {**found, _PROVIDER: f"{_S3A}.{kind}"}


def require_stated_keys(
    catalog: Mapping[str, str], settings: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Refuse a server that would be started without the keys of S3: they are in an environment that it is not given.

    Raises:
        EnvironmentRefused: naming the variables that this process has.
    """
    found = sorted(name for name in environment if name in _OF_THE_ENVIRONMENT)
    if not found or not is_in_s3(catalog) or {"fs.s3a.access.key", _PROVIDER} & settings.keys():
        return
    raise EnvironmentRefused(
        Problem(
            f"a Spark server that is kept would not have the keys of S3, which are in the environment: {', '.join(found)}",
            "no credential of an environment is passed on to a server that is kept: it serves processes with others",
            "state them as properties of the catalog (`s3.access-key-id`, `s3.secret-access-key`), or a provider "
            f'(`{_PROVIDER}`) in `spark`, or compute without it (`spark_server = "never"`)',
        )
    )


def require_classes(session: SparkSession, catalog: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Refuse a session that could not read or write tables in S3, before anything is asked of it.

    Args:
        session: a session, as it was made.
        catalog: the properties of the catalog.
        settings: those of the session.

    Raises:
        EnvironmentRefused: naming the artefacts that are missing, in the versions that fit this Spark.
    """
    if not is_in_s3(catalog):
        return
    named = (settings.get(f"fs.{_SCHEMES[0]}.impl", ""), settings.get(COMMIT_PROTOCOL, ""))
    ours = {f"{_S3A}.S3AFileSystem": (f"{_S3A}.S3AFileSystem", _SDK)}
    wanted = [one for name in named if name for one in ours.get(name, (name,))]
    missing = [name for name in wanted if not pyspark_private.has_class(session, name)]
    if not missing:
        return
    hadoop, spark = pyspark_private.versions(session)
    raise _missing(missing, hadoop, f"of Spark {spark.rpartition('.')[0]}")


def refusal(error: BaseException, settings: Mapping[str, str]) -> EnvironmentRefused | None:
    """Return the refusal of a session whose server has no class that tables in S3 need; None of any other error.

    A client cannot look for classes, but Spark refuses the name of one that it cannot load where a setting has it.
    """
    said = words_of(error)
    named = [settings.get(name, "") for name in (COMMIT_PROTOCOL, COMMITTER)]
    missing = [name for name in named if name.startswith(_CLOUD) and f"'{name}'" in said]
    return _missing(missing, "of the server's Hadoop", "of the server's Spark") if missing else None


def _missing(names: Sequence[str], hadoop: str, spark: str) -> EnvironmentRefused:
    artefacts = {
        _S3A: f"org.apache.hadoop:hadoop-aws:{hadoop}",
        "software.amazon.awssdk": "the AWS SDK that it names (software.amazon.awssdk:bundle)",
        _CLOUD: f"org.apache.spark:spark-hadoop-cloud_2.13 {spark}",
    }
    return EnvironmentRefused(
        Problem(
            f"Spark has no class {name}",
            "tables in S3 are read and written through Hadoop's S3A and its magic committer",
            f"put {artefact} on Spark's class path (`spark.jars`, or `spark.driver.extraClassPath`)",
        )
        for name in names
        for artefact in [next((text for one, text in artefacts.items() if name.startswith(one)), f"what has {name}")]
    )
