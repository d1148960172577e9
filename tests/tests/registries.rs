//! Images from a mirror with a certificate of a private authority, with the options that `site`, `node` and `image pull` have.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Result, ensure};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use sha2::{Digest, Sha256};
use tombolo_testkit::{Pki, cargo_binary};

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Manifest, configuration and the one (empty) layer of an image, by what a registry is asked for.
fn image() -> HashMap<String, Vec<u8>> {
    let layer = vec![0; 1024];
    let config = json!({"os": "linux", "architecture": "amd64", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]}});
    let config = config.to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": digest(&config)}, "layers": [{"digest": digest(&layer)}]});
    [("v1".to_owned(), manifest.to_string().into_bytes()), (digest(&config), config), (digest(&layer), layer)]
        .into()
}

/// A registry with a certificate of `pki`; serves until the test's process ends.
fn registry(pki: &Pki) -> Result<u16> {
    let pair = pki.server("registry", &[Ipv4Addr::LOCALHOST.into()])?;
    let chain = CertificateDer::pem_file_iter(&pair.certificate)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&pair.key)?)?;
    let (tls, blobs) = (Arc::new(tls), image());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let Ok(session) = ServerConnection::new(tls.clone()) else { return };
            let mut stream = BufReader::new(StreamOwned::new(session, socket));
            let mut first = String::new();
            if stream.read_line(&mut first).is_err() {
                continue;
            }
            let mut line = String::new();
            while stream.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let path = first.split(' ').nth(1).unwrap_or_default();
            let found = blobs.get(path.rsplit('/').next().unwrap_or_default());
            let (status, body) = found.map_or(("404 Not Found", &[][..]), |body| ("200 OK", body));
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let stream = stream.get_mut();
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    Ok(port)
}

fn pull(data: &Path, more: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(cargo_binary("tombolo"));
    command.args(["image", "pull", "registry.invalid/team/app:v1", "--data-dir"]).arg(data).args(more);
    let output = command.output()?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok((output.status.success(), text))
}

#[test]
fn an_image_comes_from_a_mirror_with_a_private_authority() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let pki = Pki::new(dir.path())?;
    // Where a node keeps its images.
    std::fs::create_dir(dir.path().join("images"))?;
    let mirror = format!("registry.invalid=https://127.0.0.1:{}/", registry(&pki)?);
    let authority = pki.ca();
    let authority = authority.to_str().expect("text");

    let (done, said) = pull(dir.path(), &["--registry-mirror", &mirror])?;
    ensure!(!done, "a stranger's certificate was trusted: {said}");
    let (done, said) = pull(dir.path(), &["--registry-mirror", &mirror, "--registry-ca", authority])?;
    ensure!(done && said.contains("registry.invalid/team/app:v1 sha256:"), "{said}");

    for (wrong, wanted) in [
        (["--registry-mirror", "mirror.example"], "REGISTRY=URL"),
        (["--registry-ca", "/nowhere/ca.pem"], "cannot read --registry-ca /nowhere/ca.pem"),
    ] {
        let (done, said) = pull(dir.path(), &wrong)?;
        ensure!(!done && said.contains(wanted), "{wrong:?}: {said}");
    }
    Ok(())
}
