//! Servers that are not llmprof, and proxies that cut responses, on loopback.
//!
//! A thread per connection; each connection has one request.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Answer of a server to a request.
pub enum Reply {
    /// These bytes.
    Text(String),
    /// The response of the service behind it.
    Forward,
    /// The first bytes of that response, and then a cut.
    Cut(usize),
}

/// A server with the heads of its requests.
pub struct FakeServer {
    pub url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeServer {
    /// Starts a server that answers by `reply`, to the head of a request and the heads before it.
    pub fn start(
        upstream: &str,
        reply: impl Fn(&str, &[String]) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, reply) = (Arc::clone(&requests), Arc::new(reply));
        let upstream = upstream.trim_start_matches("http://").to_owned();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (seen, reply, upstream) =
                    (Arc::clone(&seen), Arc::clone(&reply), upstream.clone());
                thread::spawn(move || serve(client, &upstream, &seen, &*reply));
            }
        });
        Self { url, requests }
    }

    /// The heads of the requests so far, whose first line contains `path`.
    pub fn requests(&self, path: &str) -> Vec<String> {
        let all = self.requests.lock().unwrap();
        let is_of = |head: &&String| head.lines().next().unwrap().contains(path);
        all.iter().filter(is_of).cloned().collect()
    }
}

/// A response with a body.
pub fn response(status: &str, kind: &str, body: &str) -> Reply {
    Reply::Text(format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    ))
}

fn serve(
    mut client: TcpStream,
    upstream: &str,
    seen: &Mutex<Vec<String>>,
    reply: &dyn Fn(&str, &[String]) -> Reply,
) {
    let Some((head, rest)) = read_head(&mut client) else { return };
    let reply = {
        let mut seen = seen.lock().unwrap();
        let reply = reply(&head, &seen);
        seen.push(head.clone());
        reply
    };
    let max = match reply {
        Reply::Text(text) => {
            client.write_all(text.as_bytes()).ok();
            return;
        }
        Reply::Forward => usize::MAX,
        Reply::Cut(bytes) => bytes,
    };
    let mut service = TcpStream::connect(upstream).unwrap();
    // The connection ends with its response.
    let head = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    service.write_all(head.as_bytes()).unwrap();
    service.write_all(&rest).unwrap();
    let (mut body, mut to) = (client.try_clone().unwrap(), service.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut body, &mut to).ok());
    let (mut sent, mut block) = (0, vec![0; 1 << 14]);
    while sent < max {
        let Ok(read @ 1..) = service.read(&mut block) else { break };
        let end = read.min(max - sent);
        if client.write_all(&block[..end]).is_err() {
            break;
        }
        sent += end;
    }
    client.shutdown(std::net::Shutdown::Both).ok();
    service.shutdown(std::net::Shutdown::Both).ok();
}

/// Reads the head of a request, and the bytes after it.
fn read_head(client: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let read = client.read(&mut block).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&block[..read]);
        if let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Some((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
    }
}
