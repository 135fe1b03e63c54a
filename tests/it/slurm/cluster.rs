//! A Slurm cluster of only this machine, started for one test and ended with it: munged, slurmctld
//! and two nodes with a "GPU" each.
//!
//! Every process that has a file open in the folders of the test, or names them, is killed at the
//! end, also when the test itself is killed.

use std::{
    fs,
    net::TcpListener,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Longest wait for the cluster: machines that build are slow.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Waits until its parent is gone, then kills every process that names the folders of its arguments
/// or has a file in them open.
const GUARD: &str = r#"cat >/dev/null
for pass in 1 2 3 4 5; do
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        text() { ls -l $process/fd $process/cwd; cat $process/environ $process/cmdline; }
        if [ "$pid" != $$ ] && text 2>/dev/null | grep -aqF -e "$1" -e "$2"; then
            kill -KILL "$pid"
        fi
    done
    sleep 0.2
done
rm -rf "$1" "$2""#;
/// Ports that the kernel does not assign.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

pub struct Cluster {
    dir: PathBuf,
    /// Folders by which processes of the cluster and of its jobs are found.
    folders: [PathBuf; 2],
    /// Kills remaining processes when the test is killed.
    guard: Child,
    munged: Child,
    controller: Option<Child>,
    nodes: [Option<Child>; 2],
}

impl Cluster {
    /// Starts a cluster in `dir` for jobs with files in `data`; `None` if Slurm is not installed.
    pub fn start(dir: &Path, data: &Path) -> Option<Self> {
        if !is_installed() {
            let required =
                std::env::var_os("LLMPROF_REQUIRE_SLURM").is_some_and(|value| value == "1");
            assert!(
                !required,
                "Slurm is required: run scripts/install-slurm.sh, and the tests as root"
            );
            eprintln!("skipped: needs root, and Slurm (scripts/install-slurm.sh)");
            return None;
        }
        let mut guard = Command::new("sh");
        guard
            .args(["-c", GUARD, "guard"])
            .args([dir, data])
            .stdin(Stdio::piped())
            .stderr(Stdio::null());
        let guard = guard.process_group(0).spawn().unwrap();
        fs::create_dir_all(dir.join("state")).unwrap();
        // The folders on the way to munge's socket are open to all, as it wants.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let ports: Vec<String> = free_ports().into_iter().map(|port| port.to_string()).collect();
        let mut conf = include_str!("../../../conf/test/slurm.conf").to_owned();
        let folder = dir.display().to_string();
        let words = [
            ("@DIR@", folder.as_str()),
            ("@HOST@", host.trim()),
            ("@CONTROLLER_PORT@", &ports[0]),
            ("@PORT_1@", &ports[1]),
            ("@PORT_2@", &ports[2]),
        ];
        for (word, value) in words {
            conf = conf.replace(word, value);
        }
        fs::write(dir.join("slurm.conf"), conf).unwrap();
        fs::write(dir.join("gres.conf"), "NodeName=n[1-2] Name=gpu File=/dev/null\n").unwrap();
        fs::write(dir.join("cgroup.conf"), "").unwrap();

        let munge = dir.join("munge");
        fs::create_dir(&munge).unwrap();
        fs::set_permissions(&munge, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(munge.join("key"), "llmprof".repeat(40)).unwrap();
        fs::set_permissions(munge.join("key"), fs::Permissions::from_mode(0o600)).unwrap();
        let munged = ends_with_us("munged")
            .arg("--foreground")
            .arg("--force")
            .arg(format!("--socket={}", dir.join("munge.socket").display()))
            .arg(format!("--key-file={}", munge.join("key").display()))
            .arg(format!("--log-file={}", munge.join("log").display()))
            .arg(format!("--pid-file={}", munge.join("pid").display()))
            .arg(format!("--seed-file={}", munge.join("seed").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let folders = [dir.to_owned(), data.to_owned()];
        let mut cluster = Self {
            dir: dir.to_owned(),
            folders,
            guard,
            munged,
            controller: None,
            nodes: [None, None],
        };
        wait("munged", || dir.join("munge.socket").exists());
        cluster.start_controller();
        cluster.start_node(0);
        cluster.start_node(1);
        wait("two idle nodes", || {
            cluster.output("sinfo", &["--noheader", "--format=%T %D"]).trim() == "idle 2"
        });
        Some(cluster)
    }

    pub fn conf(&self) -> PathBuf {
        self.dir.join("slurm.conf")
    }

    pub fn start_controller(&mut self) {
        self.controller = Some(self.daemon("slurmctld", &["-D"]));
        wait("slurmctld", || self.run("scontrol", &["ping"]).status.success());
    }

    /// Stops the controller. With `TERM`, as by an administrator, it saves the state of its jobs.
    pub fn stop_controller(&mut self, signal: Signal) {
        let mut controller = self.controller.take().unwrap();
        kill(Pid::from_raw(controller.id().cast_signed()), signal).unwrap();
        controller.wait().unwrap();
    }

    pub fn start_node(&mut self, at: usize) {
        self.nodes[at] = Some(self.daemon("slurmd", &["-D", "-N", &format!("n{}", at + 1)]));
    }

    /// Kills a node's daemon, not its jobs. The controller notices within its short timeout.
    pub fn lose_node(&mut self, at: usize) {
        let patient = fs::read_to_string(self.conf()).unwrap();
        let less = patient.replace("SlurmdTimeout=60", "SlurmdTimeout=12");
        assert_ne!(patient, less);
        fs::write(self.conf(), less).unwrap();
        assert!(self.run("scontrol", &["reconfigure"]).status.success());
        end(self.nodes[at].take());
    }

    /// Resumes, as an administrator does, nodes that Slurm drained for a job's number that they
    /// knew.
    pub async fn administer(&self) {
        loop {
            let drained =
                self.output("sinfo", &["--noheader", "--Node", "--states=drain", "--format=%N %E"]);
            for node in
                drained.lines().filter_map(|line| line.trim().strip_suffix(" Duplicate jobid"))
            {
                self.run("scontrol", &["update", &format!("NodeName={node}"), "State=RESUME"]);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    fn daemon(&self, name: &str, args: &[&str]) -> Child {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join(format!("{name}.out")))
            .unwrap();
        ends_with_us(name)
            .args(args)
            .env("SLURM_CONF", self.conf())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    pub fn run(&self, name: &str, args: &[&str]) -> Output {
        Command::new(name).args(args).env("SLURM_CONF", self.conf()).output().unwrap()
    }

    /// Output of a command of Slurm.
    pub fn output(&self, name: &str, args: &[&str]) -> String {
        String::from_utf8(self.run(name, args).stdout).unwrap()
    }

    /// Every job of the run that the cluster knows: its state and node.
    pub fn jobs_of(&self, run: &str) -> Vec<String> {
        let printed = self.output(
            "squeue",
            &["--noheader", "--states=all", &format!("--name={run}"), "--format=%T %N"],
        );
        printed.lines().map(str::to_owned).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in
                ["slurmctld.log", "slurmd.n1.log", "slurmd.n2.log", "slurmctld.out", "slurmd.out"]
            {
                let log = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                eprintln!("-- {name}\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
            }
            eprintln!("-- squeue\n{}", self.output("squeue", &["--states=all"]));
        }
        self.guard.kill().ok();
        self.guard.wait().ok();
        self.run("scancel", &["--me", "--quiet", "--signal=KILL", "--full"]);
        for node in &mut self.nodes {
            end(node.take());
        }
        end(self.controller.take());
        self.munged.kill().ok();
        self.munged.wait().ok();
        let started = Instant::now();
        loop {
            let left = processes(&self.folders);
            if left.is_empty() {
                return;
            }
            if started.elapsed() > PATIENCE {
                assert!(std::thread::panicking(), "the cluster left processes: {left:?}");
                return;
            }
            for pid in left {
                kill(pid, Signal::SIGKILL).ok();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Processes that name one of the folders or have a file in it open: daemons of jobs overwrite
/// their arguments.
fn processes(folders: &[PathBuf]) -> Vec<Pid> {
    let is_of = |process: &Path| {
        let printed =
            ["cmdline", "environ"].map(|name| fs::read(process.join(name)).unwrap_or_default());
        let names = printed.iter().map(|text| String::from_utf8_lossy(text).into_owned());
        let open = fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let links = open.chain([process.join("cwd")]).filter_map(|link| fs::read_link(link).ok());
        let mut words = names.chain(links.map(|path| path.display().to_string()));
        words.any(|text| folders.iter().any(|folder| text.contains(&folder.display().to_string())))
    };
    let pid = |path: &Path| path.file_name()?.to_str()?.parse::<i32>().ok();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter_map(|path| Some((pid(&path)?, path)))
        .filter(|(pid, path)| pid.unsigned_abs() != std::process::id() && is_of(path))
        .map(|(pid, _)| Pid::from_raw(pid))
        .collect()
}

/// Waits until `is` holds.
pub fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn end(daemon: Option<Child>) {
    if let Some(mut daemon) = daemon {
        daemon.kill().ok();
        daemon.wait().ok();
    }
}

/// Three ports that are free now.
fn free_ports() -> Vec<u16> {
    let first = PORTS.start
        + u16::try_from(std::process::id() % u32::from(PORTS.end - PORTS.start)).unwrap();
    let ports = (first..PORTS.end).chain(PORTS.start..first);
    ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(3).collect()
}

/// A daemon that ends with the thread of the test.
fn ends_with_us(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program(name));
    command
}

fn program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found =
        folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| name.into())
}

fn is_installed() -> bool {
    let there = ["slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "setpriv"]
        .iter()
        .all(|name| program(name).exists());
    there && fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
