//! Limits of connections: their number, clients that read nothing, and open files.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tempfile::tempdir;

use crate::support::service::{LLMPROF, Service, Setup, command};

const ASK: &[u8] = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(60);

/// A service with settings, as environment variables.
fn service(data: &std::path::Path, settings: &[(&str, &str)]) -> Service {
    let mut command = command(data, &Setup::default());
    command.envs(settings.iter().copied());
    Service::spawn(&mut command, data)
}

fn address(service: &Service) -> SocketAddr {
    service.base.strip_prefix("http://").unwrap().parse().unwrap()
}

fn connect(service: &Service) -> TcpStream {
    let stream = TcpStream::connect(address(service)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Asks for the health; false if the connection was closed instead.
fn is_served(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 15];
    let sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let read = sent.and_then(|()| stream.read_exact(&mut answer));
    if let Err(error) = &read {
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }
    read.is_ok() && answer == *b"HTTP/1.1 200 OK"
}

/// A connection that is served, once there is a place for it: the service notices the ends of
/// earlier connections, such as the one that waited for its start, one after the other.
fn served(service: &Service) -> TcpStream {
    let start = Instant::now();
    loop {
        let mut stream = connect(service);
        if is_served(&mut stream) {
            return stream;
        }
        assert!(start.elapsed() < PATIENCE, "no place became free");
    }
}

/// The value of a metric, once it is not 0.
async fn counted(service: &Service, name: &str) -> String {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..1200 {
        tick.tick().await;
        let text = service.get("/metrics").await.text().await.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| {
            panic!("{name} is not in\n{text}");
        });
        if line != " 0" {
            return line.trim().to_owned();
        }
    }
    panic!("{name} remains 0");
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_closed_and_a_slow_one_is_served() {
    let data = tempdir().unwrap();
    let service = service(data.path(), &[("LLMPROF__SERVER__WRITE_S", "2")]);
    let size = service.get("/openapi.json").await.bytes().await.unwrap().len();
    let wanted = 12 * size;
    let slow = connect(&service);
    let slow = std::thread::spawn(move || {
        let mut slow = slow;
        for _ in 0..12 {
            slow.write_all(ASK).unwrap();
        }
        let (mut read, mut block) = (0, vec![0; wanted / 50]);
        while read < wanted {
            // The pace of a slow client: longer in total than the timeout.
            std::thread::sleep(Duration::from_millis(100));
            let count = slow.read(&mut block).unwrap();
            assert!(count > 0, "closed after {read} of {wanted} bytes");
            read += count;
        }
    });
    let mut deaf = connect(&service);
    deaf.write_all(&ASK.repeat(100)).unwrap();
    let name = r#"llmprof_refused_total{reason="unread_response"}"#;
    assert_eq!(counted(&service, name).await, "1");
    let mut received = Vec::new();
    deaf.read_to_end(&mut received).ok();
    assert!(received.len() < 100 * size, "everything was answered");
    slow.join().unwrap();
    assert_eq!(counted(&service, name).await, "1", "the slow one was not closed");
}

#[tokio::test]
async fn connections_beyond_a_limit_are_closed_at_once() {
    let data = tempdir().unwrap();
    let settings =
        [("LLMPROF__SERVER__CONNECTIONS", "16"), ("LLMPROF__SERVER__CONNECTIONS_PER_ADDRESS", "2")];
    let service = service(data.path(), &settings);
    // Clients of one host share the loopback address, which has no limit of its own.
    let held: Vec<_> = (0..16).map(|_| served(&service)).collect();
    assert!(!is_served(&mut connect(&service)), "sixteen are open");
    drop(held);
    drop(served(&service));
    let name = r#"llmprof_refused_total{reason="connections"}"#;
    assert!(counted(&service, name).await.parse::<u64>().unwrap() >= 1);
}

#[tokio::test]
async fn clients_that_read_nothing_leave_their_places_to_others() {
    let data = tempdir().unwrap();
    let service = service(data.path(), &[("LLMPROF__SERVER__CONNECTIONS", "16")]);
    // The timeout of writes is a minute.
    let start = Instant::now();
    let mut deaf: Vec<_> = (0..16).map(|_| served(&service)).collect();
    for stream in &mut deaf {
        stream.write_all(&ASK.repeat(50)).unwrap();
    }
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    let mut other = connect(&service);
    while !is_served(&mut other) {
        tick.tick().await;
        other = connect(&service);
    }
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
}

#[tokio::test]
async fn the_limit_of_open_files_is_raised_at_start() {
    let data = tempdir().unwrap();
    let usual = command(data.path(), &Setup::default());
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\"", LLMPROF]).args(usual.get_args());
    limited.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let service = Service::spawn(&mut limited, data.path());
    let limits = fs::read_to_string(format!("/proc/{}/limits", service.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    assert_eq!(numbers[0], numbers[1].min(65_536), "{line}");
    assert!(service.stop(Signal::SIGTERM).success());
}

#[tokio::test]
async fn a_request_with_bare_line_feeds_or_two_hosts_is_refused() {
    let data = tempdir().unwrap();
    let service = service(data.path(), &[]);
    let status = |text: &str| {
        let mut stream = connect(&service);
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    let body = "a\nb\n\n";
    let post = format!("POST /runs HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n{body}");
    assert_eq!(status("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"), "200");
    for wrong in [
        "GET /healthz HTTP/1.1\nhost: localhost\n\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
    ] {
        assert_eq!(status(wrong), "400", "{wrong:?}");
    }
    // The second request of a connection, after a body with line feeds.
    let mut stream = connect(&service);
    stream.write_all(format!("{post}GET /healthz HTTP/1.1\nhost: a\n\n").as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let statuses: Vec<_> = answers.split("HTTP/1.1 ").skip(1).map(|it| &it[..3]).collect();
    assert_eq!(statuses, ["421", "400"], "{answers}");
}
