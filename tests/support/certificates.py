"""Certificates for a server on the loopback, of an authority that nobody else trusts."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def server_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Returns the authority as a file in a folder, and what a server on 127.0.0.1 needs."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "server")]
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    for number, file in enumerate(("authority.pem", "server.pem")):
        builder = x509.CertificateBuilder(names[0], names[number], keys[number].public_key(), number + 1)
        builder = builder.not_valid_before(now - day).not_valid_after(now + day).add_extension(address, critical=False)
        builder = builder.add_extension(x509.BasicConstraints(number == 0, None), critical=True)
        (folder / file).write_bytes(builder.sign(keys[0], SHA256()).public_bytes(Encoding.PEM))
    key = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return folder / "authority.pem", context
