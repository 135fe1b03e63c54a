//! A session of Nsight Systems that stays: a server under `nsys launch`, and commands to record it.
//!
//! Pure values. All commands of a session run in one shell, because nsys finds its sessions in the
//! shared memory of its process tree. The shell reads them from a named pipe and writes their exit
//! codes to files, so that an idle session costs nothing.

use std::path::{Path, PathBuf};

use llmprof_core::domain::profiling::NsysSettings;

use super::nsys_window::{START_LIMIT_S, STOP_LIMIT_S, launch_of};
use crate::collect::process::argv::Argv;

/// The named pipe for commands, in the session's folder for temporary files.
const REQUESTS: &str = "requests";
/// Contains the exit code of the server, once it has ended.
const ENDED: &str = "launch-ended";

/// Files that control a session, in its folder for temporary files.
#[derive(Debug, Clone)]
pub struct SessionFiles {
    folder: PathBuf,
}

impl SessionFiles {
    pub fn of(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub fn requests(&self) -> PathBuf {
        self.folder.join(REQUESTS)
    }

    /// Contains the exit code of the command of this number.
    pub fn answer(&self, number: &str) -> PathBuf {
        self.folder.join(format!("answer-{number}"))
    }

    pub fn ended(&self) -> PathBuf {
        self.folder.join(ENDED)
    }
}

/// Arguments: nsys, session, and the words of `nsys launch`. Fields of a command are separated by
/// tabs. A recording that its run left open is stopped and removed; older versions cannot cancel.
const SHELL: &str = r#"nsys=$1 session=$2; shift 2
mkfifo "$TMPDIR/requests" && exec 3<>"$TMPDIR/requests" || exit 1
{ "$@" 3>&-; echo $? >"$TMPDIR/ended.new"; mv "$TMPDIR/ended.new" "$TMPDIR/launch-ended"
  printf '0\tend\n' >&3; } &
open=
stop() { timeout -k 5 STOP "$nsys" stop --session="$session" 3>&-; }
drop() { [ -z "$open" ] || { stop; code=$?; rm -f "$open".*; open=; return $code; }; }
answer() { echo $? >"$TMPDIR/answer.new"; mv "$TMPDIR/answer.new" "$TMPDIR/answer-$number"; }
while IFS='	' read -r number action stem options <&3; do
    case $action in
    start)
        drop; open=$stem
        timeout -k 5 START "$nsys" start --session="$session" --force-overwrite=true \
            --output="$stem" $options 3>&-
        answer ;;
    stop) stop && open=; answer ;;
    drop) drop; answer ;;
    end) break ;;
    esac
done
wait
exit "$(cat "$TMPDIR/launch-ended")""#;

/// Starts `target` in a session of this name.
pub fn launch(
    nsys: &Path,
    settings: &NsysSettings,
    on_gpu: bool,
    name: &str,
    target: &Argv,
) -> Argv {
    let (launch, env) = launch_of(nsys, settings, on_gpu, name, target);
    let shell = SHELL
        .replace("START", &START_LIMIT_S.to_string())
        .replace("STOP", &STOP_LIMIT_S.to_string());
    let argv = Argv::new("sh")
        .args(["-c", &shell, "sh"])
        .arg(nsys)
        .arg(name)
        .arg(&launch.program)
        .args(launch.args);
    Argv { env, pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{mode::Mode, profiling::Profiling};

    use super::*;
    use crate::collect::{process::orphans::TARGET, tools::nsys_window::start_options};

    #[test]
    fn apis_and_graphs_belong_to_the_launch_and_samples_to_each_start() {
        let settings = Profiling::bundled(&Mode::DEEP).unwrap().nsys;
        let target = Argv::new("/opt/serve").arg("a b").env("X", "1").env(TARGET.0, TARGET.1);
        let argv = launch(Path::new("nsys"), &settings, true, "llmprof-1", &target);
        let words: Vec<String> =
            argv.args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(
            words[3..],
            [
                "nsys",
                "llmprof-1",
                "nsys",
                "launch",
                "--session-new=llmprof-1",
                "--trace",
                "cuda,nvtx",
                "--wait=primary",
                "--cuda-graph-trace=node",
                "--env-var=LLMPROF_TARGET=1",
                "/opt/serve",
                "a b",
            ]
        );
        assert!(!words[1].contains("START") && !words[1].contains("STOP"), "{}", words[1]);
        assert_eq!(argv.env, [("X".to_owned(), "1".into())]);
        assert_eq!(
            start_options(&settings, Some(10_000)),
            "--sample=none --cpuctxsw=none --gpu-metrics-devices=cuda-visible \
             --gpu-metrics-frequency=10000"
        );
    }
}
