//! The serving process: refused addresses, TLS, and connections that never send a request.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream, pki_types::CertificateDer};

use crate::support::service::{LLMPROF, RUNNER, Service, Setup, command};

const PATIENCE: Duration = Duration::from_secs(60);

/// A certificate of its own for localhost, in files; and the bytes to trust it by.
fn certificate(folder: &Path) -> (PathBuf, PathBuf, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (chain, key, made.cert.der().clone())
}

fn token(data: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(LLMPROF)
        .arg("token")
        .args(arguments)
        .arg("--data")
        .arg(data)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// Starts a service that must fail, and returns its error.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn everywhere(data: &Path) -> Command {
    let mut command = Command::new(LLMPROF);
    command
        .args(["serve", "--listen", "0.0.0.0:0", "--data"])
        .arg(data)
        .env("LLMPROF_LOG", "error");
    command
        .env("LLMPROF__TOOLS__MODEL_RUNNER", RUNNER)
        .env("LLMPROF__WORKER__DEVICES", r#"["cpu"]"#);
    command
}

#[test]
fn an_address_that_others_reach_is_refused_without_encryption_and_without_tokens() {
    let data = tempfile::tempdir().unwrap();
    let (chain, key, _) = certificate(data.path());
    let text = refusal(&mut everywhere(data.path()));
    assert!(text.contains("server.tls.certificate") && text.contains("--behind-proxy"), "{text}");
    let text = refusal(everywhere(data.path()).arg("--behind-proxy"));
    assert!(text.contains("llmprof token create"), "{text}");
    let tls = |command: &mut Command| {
        refusal(
            command
                .env("LLMPROF__SERVER__TLS__CERTIFICATE", &chain)
                .env("LLMPROF__SERVER__TLS__KEY", &key),
        )
    };
    assert!(tls(&mut everywhere(data.path())).contains("llmprof token create"));
    assert!(
        tls(everywhere(data.path()).env("LLMPROF__ACCESS__TOKENS", "off"))
            .contains("without authentication")
    );
}

#[test]
fn certificate_files_that_do_not_fit_are_one_error_at_start() {
    let data = tempfile::tempdir().unwrap();
    let (chain, key, _) = certificate(data.path());
    let start = |chain: &Path, key: &Path| {
        let mut command = command(data.path(), &Setup::default());
        refusal(
            command
                .env("LLMPROF_LOG", "error")
                .env("LLMPROF__SERVER__TLS__CERTIFICATE", chain)
                .env("LLMPROF__SERVER__TLS__KEY", key),
        )
    };
    assert!(start(&data.path().join("gone.pem"), &key).contains("cannot read"));
    assert!(start(&key, &key).contains("contains no certificate"));
    let other = tempfile::tempdir().unwrap();
    assert!(start(&chain, &certificate(other.path()).1).contains("does not match"));
}

/// One request over TLS, as text.
fn tls_get(
    base: &str,
    root: &CertificateDer<'static>,
    path: &str,
    token: &str,
) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let mut connection =
        ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut socket = TcpStream::connect(base.strip_prefix("https://").unwrap())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut stream = Stream::new(&mut connection, &mut socket);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         connection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn tokens_made_beside_a_running_service_open_it_over_tls_and_a_new_certificate_is_taken_up() {
    let data = tempfile::tempdir().unwrap();
    let (chain, key, root) = certificate(data.path());
    let mut command = command(data.path(), &Setup::default());
    command.env("LLMPROF__SERVER__TLS__CERTIFICATE", &chain).env("LLMPROF__SERVER__TLS__KEY", &key);
    command.env("LLMPROF__ACCESS__TOKENS", "required");
    let service = Service::spawn(&mut command, data.path());
    let status = |root: &CertificateDer<'static>, token: &str| {
        let text = tls_get(&service.base, root, "/runs", token).unwrap();
        text.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(status(&root, "llmprof_0"), "401");
    let (made, text) =
        token(data.path(), &["create", "--role", "viewer", "--name", "ann", "--expires", "90d"]);
    assert!(made && text.len() == "llmprof_".len() + 64, "{text}");
    assert_eq!(status(&root, &text), "200");
    let secured = tls_get(&service.base, &root, "/healthz", "").unwrap();
    assert!(secured.contains("strict-transport-security: max-age=31536000"), "{secured}");
    assert!(token(data.path(), &["list"]).1.contains("ann"));
    assert!(token(data.path(), &["revoke", "ann"]).0);
    assert_eq!(status(&root, &text), "401");
    // A bad certificate changes nothing, and a good one is taken up.
    std::fs::write(&chain, "nothing").unwrap();
    let hangup = || {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(service.child.id().cast_signed()),
            nix::sys::signal::SIGHUP,
        )
    };
    hangup().unwrap();
    assert_eq!(status(&root, &text), "401");
    let (_, _, new) = certificate(data.path());
    hangup().unwrap();
    let start = std::time::Instant::now();
    while tls_get(&service.base, &new, "/healthz", "").is_err() {
        assert!(start.elapsed() < PATIENCE, "the new certificate is not in use");
    }
}

#[test]
fn a_certificate_whose_files_change_is_taken_up_without_a_word() {
    let data = tempfile::tempdir().unwrap();
    let (chain, key, _) = certificate(data.path());
    let mut command = command(data.path(), &Setup::default());
    command.env("LLMPROF__SERVER__TLS__CERTIFICATE", &chain).env("LLMPROF__SERVER__TLS__KEY", &key);
    let service = Service::spawn(&mut command, data.path());
    let (_, _, new) = certificate(data.path());
    let start = std::time::Instant::now();
    while tls_get(&service.base, &new, "/healthz", "").is_err() {
        assert!(start.elapsed() < PATIENCE, "the new certificate is not in use");
        std::thread::sleep(Duration::from_millis(200)); // the files are looked at every ten seconds
    }
}

#[test]
fn a_client_that_never_ends_the_head_of_its_request_is_cut_off() {
    let data = tempfile::tempdir().unwrap();
    let mut command = command(data.path(), &Setup::default());
    let service = Service::spawn(command.env("LLMPROF__SERVER__HEADER_S", "1"), data.path());
    for sent in ["", "GET /healthz HTTP/1.1\r\nhost: x\r\nslow: "] {
        let mut socket = TcpStream::connect(service.base.strip_prefix("http://").unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(sent.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(!answer.contains("200 OK"), "{answer}");
    }
}
