//! A trivial server for measurements of the load generator: streams a chat of a few tokens at once,
//! and records when it sent the first one.
//!
//! `load_server PORT TOKENS`: each line of its output is the number of a request (of
//! `x-request-id: llmprof-N`) and the time of CLOCK_MONOTONIC at which its first token was sent.

use std::io::Write as _;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().and_then(|it| it.parse().ok()).unwrap_or(18_500);
    let tokens: usize = args.next().and_then(|it| it.parse().ok()).unwrap_or(4);
    let body = format!("{}data: [DONE]\n\n", TOKEN.repeat(tokens));
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (times, mut sent) = mpsc::unbounded_channel::<(u64, i64)>();
    std::thread::spawn(move || {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        while let Some((request, at)) = sent.blocking_recv() {
            // The reader may have ended.
            let _ = writeln!(out, "{request} {at}");
            if sent.is_empty() {
                let _ = out.flush();
            }
        }
    });
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (response, times) = (response.clone(), times.clone());
        tokio::spawn(async move {
            // A client may close its connection at any time.
            let _ = serve(stream, &response, &times).await;
        });
    }
}

async fn serve(
    mut stream: TcpStream,
    response: &str,
    times: &mpsc::UnboundedSender<(u64, i64)>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut bytes, mut part) = (Vec::new(), [0; 16384]);
    loop {
        let size = stream.read(&mut part).await?;
        if size == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&part[..size]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
        let field =
            |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let length: u64 = field("content-length: ").unwrap_or(0);
        if (rest.len() as u64) < length {
            continue;
        }
        let request = field("x-request-id: llmprof-").unwrap_or(0);
        bytes.clear();
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
        stream.write_all(response.as_bytes()).await?;
        let _ = times.send((request, now.tv_sec() * 1_000_000_000 + now.tv_nsec()));
    }
}
