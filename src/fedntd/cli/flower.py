"""`fedntd flower`: create an app for a real federation, and certificates and keys for trials."""

import importlib.util
import keyword
import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from fedntd.errors import FedntdError, require
from fedntd.runs.record import writing

app = typer.Typer(no_args_is_help=True)

TEMPLATE = Path(str(files("fedntd.flower"))) / "template"
ENVIRONMENT = """\
# Read it with: . {folder}/env.sh
export FLWR_TELEMETRY_ENABLED=0     # Flower sends nothing to its makers
export FLWR_DISABLE_UPDATE_CHECK=1  # and does not look for a newer version
export FLWR_HOME="{folder}/.flwr"   # where flwr finds the coordinator, in config.toml
"""
CONNECTION = """\
[superlink]
default = "federation"

[superlink.federation]
address = "127.0.0.1:8000"
root-certificates = "{folder}/keys/ca.crt"
"""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The app's folder, which must not exist yet.")],
) -> None:
    """Create a small Flower app: settings in pyproject.toml, and a site.py in which each site loads its own data.

    Example: fedntd flower new hospitals
    """
    require(not folder.exists(), f"{folder} exists already; choose another name")
    project = folder.resolve().name
    package = re.sub(r"\W", "_", project).lower()
    require(
        bool(re.fullmatch(r"[A-Za-z][\w-]*", project)) and not keyword.iskeyword(package),
        f"'{project}' cannot be the name of an app: use letters, digits, - and _, beginning with a letter",
    )
    require(
        importlib.util.find_spec(package) is None, f"a package '{package}' is installed already; choose another name"
    )

    def fill_in(name: str) -> str:
        text = (TEMPLATE / name).read_text(encoding="utf-8")
        return re.sub("PROJECT|PACKAGE", lambda found: {"PROJECT": project, "PACKAGE": package}[found[0]], text)

    files = {
        "pyproject.toml": fill_in("pyproject.toml"),
        f"{package}/__init__.py": "",
        f"{package}/site.py": fill_in("site.py"),
        "env.sh": ENVIRONMENT.format(folder=folder.resolve()),
        ".flwr/config.toml": CONNECTION.format(folder=folder.resolve()),
        ".gitignore": ".flwr/\nkeys/\nruns/\n",
    }
    with writing(folder):
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    print(f"{folder}: settings in pyproject.toml, data in {package}/site.py")
    print(f"next: fedntd flower keys {folder}/keys --sites 3")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write, which must not exist yet.")],
    sites: Annotated[int, typer.Option(help="Number of sites; each gets a key.")] = 3,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the coordinator; repeatable.")] = None,
    days: Annotated[int, typer.Option(help="Days for which the certificates are valid.")] = 30,
) -> None:
    """Create certificates and keys for trials: a CA, the coordinator's certificate, and one key for each site.

    In production, each site creates its own key (ssh-keygen -t ecdsa -b 384) and shares only the public half.

    The coordinator then gets its certificate from your own CA.

    Example: fedntd flower keys keys --sites 3 --host coordinator.example.org
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise FedntdError("this needs Flower: pip install 'fedntd[flower]'") from None
    require(sites >= 1, f"--sites must be at least 1, not {sites}")
    require(1 <= days <= 36500, f"--days must lie in 1..36500, not {days}")
    require(not folder.exists(), f"{folder} exists already; keys are not overwritten")
    pem, begin = serialization.Encoding.PEM, datetime.now(UTC) - timedelta(minutes=5)
    plain = serialization.NoEncryption()

    def certificate(name: str, key: Any, issuer: str, signing: Any, *extensions: Any) -> bytes:
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=begin,
            not_valid_after=begin + timedelta(days=days),
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(signing, hashes.SHA256()).public_bytes(pem)

    def private(key: Any, form: Any = serialization.PrivateFormat.PKCS8) -> bytes:
        return key.private_bytes(pem, form, plain)

    ca, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([alternative_name(x509, h) for h in ("localhost", "127.0.0.1", *(host or []))])
    of_ca = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    files = {
        "ca.crt": certificate(
            "fedntd test CA",
            ca,
            "fedntd test CA",
            ca,
            x509.BasicConstraints(ca=True, path_length=0),
            x509.SubjectKeyIdentifier.from_public_key(ca.public_key()),
            usage,
        ),
        "server.crt": certificate("coordinator", server, "fedntd test CA", ca, names, of_ca),
        "server.key": private(server),
    }
    for k in range(sites):
        key = ec.generate_private_key(ec.SECP384R1())
        files[f"site-{k}"] = private(key, serialization.PrivateFormat.OpenSSH)
        files[f"site-{k}.pub"] = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    with writing(folder):
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / name).touch(mode=0o644 if name.endswith((".crt", ".pub")) else 0o600)
            (folder / name).write_bytes(data)
    print(f"{folder}: ca.crt, server.crt and server.key, and the keys site-0 to site-{sites - 1}")


def alternative_name(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        fits = re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", host)
        require(bool(fits), f"--host '{host}' is neither an address nor a name of letters, digits, - and dots")
        return x509.DNSName(host)
