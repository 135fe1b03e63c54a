//! A load on a real LLM server: llama.cpp's with a small random model, four slots.
//!
//! Runs if scripts/install-llm-server.sh has installed it; CI requires it by
//! LLMPROF_REQUIRE_LLM_SERVER=1.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::{load, requests};

const SERVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/llm-server/serve.py");

/// The installed server; `None` if it is missing and not required.
pub fn installed() -> Option<PathBuf> {
    let folder = std::env::var_os("LLMPROF_LLM_SERVER").map(PathBuf::from).or_else(|| {
        Some(Path::new(&std::env::var_os("HOME")?).join(".cache/llmprof/llm-server"))
    })?;
    let is_installed = folder.join("random-llama.gguf").is_file();
    let required = std::env::var_os("LLMPROF_REQUIRE_LLM_SERVER").is_some_and(|value| value == "1");
    assert!(
        is_installed || !required,
        "an LLM server is required here and not installed: run scripts/install-llm-server.sh"
    );
    is_installed.then_some(folder)
}

/// Arguments of the server's Python: script, model, port, slots.
pub fn command_line(folder: &Path, port: &str) -> (PathBuf, [String; 4]) {
    let model = folder.join("random-llama.gguf").display().to_string();
    (folder.join("bin/python"), [SERVE.to_owned(), model, port.to_owned(), "4".to_owned()])
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn four_requests_at_a_time_on_a_real_server_have_all_their_tokens() {
    let Some(folder) = installed() else { return };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (program, args) = command_line(&folder, &port.to_string());
    let mut command = Command::new(program);
    let _server =
        Server(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let url = format!("http://127.0.0.1:{port}");
    llmprof_service::collect::passes::readiness::wait_for_url(&format!("{url}/health")).await;
    let out = tempfile::tempdir().unwrap();
    let ids = ["--api", "completions", "--vocabulary", "400", "--prompt-tokens", "48"];
    let more = ["--body", "{\"ignore_eos\":true}", "--new-tokens", "12", "--requests", "12"];
    for pace in [["--concurrency", "4"], ["--rate", "30"]] {
        let args = [&ids[..], &more[..], &pace[..]].concat();
        let (output, lines) = load(&url, &args, out.path()).await;
        assert!(output.status.success(), "{output:?}");
        let found = requests(&lines);
        assert_eq!(found.len(), 12);
        for request in found {
            let count = |name: &str| request[name].as_u64().unwrap();
            assert_eq!((count("prompt_tokens"), count("completion_tokens")), (48, 12));
            let times = request["token_ns"].as_array().unwrap();
            assert!(times.len() > 1 && times.len() <= 12, "{request}");
            assert!(times.windows(2).all(|it| it[0].as_i64() <= it[1].as_i64()), "{request}");
        }
    }
}
