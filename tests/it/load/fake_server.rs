//! A scripted HTTP server: whole, slow, broken and endless responses.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Response of a server to each request.
#[derive(Debug, Clone)]
pub enum Script {
    /// These bytes, and the end of the connection.
    Whole(String),
    /// The same after a delay, one request at a time.
    Serial(Duration, String),
    /// These bytes, and nothing more.
    Stall(String),
    /// The first bytes, and the others again and again.
    Endless(String, String),
}

/// A server; it ends when dropped.
pub struct FakeServer {
    pub url: String,
    requests: Arc<Mutex<Vec<String>>>,
    count: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

/// The head of a response without a length, which ends with its connection.
pub fn head(content_type: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n")
}

/// A complete chat of `tokens` tokens with counts.
pub fn chat(tokens: usize) -> String {
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n";
    let usage = format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens}}}}}"
    );
    format!("{}{}{usage}\n\ndata: [DONE]\n\n", head("text/event-stream"), token.repeat(tokens))
}

impl FakeServer {
    pub async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (counter, count) = watch::channel(0);
        let seen = Arc::clone(&requests);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, counter) = (Arc::clone(&seen), counter.clone());
                let (script, turn) = (script.clone(), Arc::clone(&turn));
                tokio::spawn(async move {
                    // A client may close its connection at any time.
                    let _ = answer(stream, &script, &seen, &counter, &turn).await;
                });
            }
        });
        Self { url, requests, count, task }
    }

    /// The requests so far, with head and body.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until `count` requests have their response.
    pub async fn wait_for(&self, count: usize) {
        let mut seen = self.count.clone();
        let waited = seen.wait_for(|it| *it >= count);
        drop(tokio::time::timeout(Duration::from_secs(60), waited).await.unwrap().unwrap());
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    mut stream: TcpStream,
    script: &Script,
    seen: &Mutex<Vec<String>>,
    counter: &watch::Sender<usize>,
    turn: &tokio::sync::Mutex<()>,
) -> std::io::Result<()> {
    let request = read_request(&mut stream).await?;
    seen.lock().unwrap().push(request);
    let served = || counter.send_modify(|count| *count += 1);
    match script {
        Script::Whole(bytes) => stream.write_all(bytes.as_bytes()).await?,
        Script::Serial(delay, bytes) => {
            let _turn = turn.lock().await;
            tokio::time::sleep(*delay).await;
            stream.write_all(bytes.as_bytes()).await?;
        }
        Script::Stall(bytes) => {
            stream.write_all(bytes.as_bytes()).await?;
            served();
            return std::future::pending().await;
        }
        Script::Endless(first, again) => {
            stream.write_all(first.as_bytes()).await?;
            loop {
                stream.write_all(again.as_bytes()).await?;
            }
        }
    }
    served();
    stream.shutdown().await
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let size = stream.read(&mut part).await?;
        bytes.extend_from_slice(&part[..size]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                })
                .unwrap_or(0);
            if body.len() >= length || size == 0 {
                return Ok(text.into_owned());
            }
        }
        if size == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}
