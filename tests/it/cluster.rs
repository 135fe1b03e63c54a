//! A Slurm cluster of this machine alone, started for one test and ended with it: munged, slurmctld and two nodes with a "GPU" each.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// How long the cluster may take for anything: machines that build are slow.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    dir: PathBuf,
    munged: Child,
    controller: Option<Child>,
    nodes: [Option<Child>; 2],
}

impl Cluster {
    /// Starts a cluster in `dir`, or says that it is skipped where Slurm is not installed.
    pub fn start(dir: &Path) -> Option<Self> {
        if !is_installed() {
            let required = std::env::var_os("LLMPROF_REQUIRE_SLURM").is_some_and(|value| value == "1");
            assert!(!required, "Slurm is required here and not installed, or this is not root: run scripts/install-slurm.sh");
            eprintln!("skipped: Slurm is not installed (scripts/install-slurm.sh installs it), or this is not root");
            return None;
        }
        fs::create_dir_all(dir.join("state")).unwrap();
        // The folders on the way to munge's socket are open to all, as it wants.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let ports: Vec<String> = free_ports().into_iter().map(|port| port.to_string()).collect();
        let mut conf = include_str!("../../conf/test/slurm.conf").to_owned();
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
        let munged = Command::new(program("munged"))
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
        let mut cluster = Self { dir: dir.to_owned(), munged, controller: None, nodes: [None, None] };
        wait("munged", || dir.join("munge.socket").exists());
        cluster.start_controller();
        cluster.start_node(0);
        cluster.start_node(1);
        wait("two idle nodes", || cluster.says("sinfo", &["--noheader", "--format=%T %D"]).trim() == "idle 2");
        Some(cluster)
    }

    pub fn conf(&self) -> PathBuf {
        self.dir.join("slurm.conf")
    }

    pub fn start_controller(&mut self) {
        self.controller = Some(self.daemon("slurmctld", &["-D"]));
        wait("slurmctld", || self.run("scontrol", &["ping"]).status.success());
    }

    /// Ends the controller as an administrator does: it saves where its jobs stand.
    pub fn stop_controller(&mut self) {
        let mut controller = self.controller.take().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(controller.id().cast_signed()), nix::sys::signal::Signal::SIGTERM)
            .unwrap();
        controller.wait().unwrap();
    }

    pub fn start_node(&mut self, at: usize) {
        self.nodes[at] = Some(self.daemon("slurmd", &["-D", "-N", &format!("n{}", at + 1)]));
    }

    /// Kills a node's daemon, not the jobs that it started.
    pub fn kill_node(&mut self, at: usize) {
        end(self.nodes[at].take());
    }

    fn daemon(&self, name: &str, args: &[&str]) -> Child {
        let log = fs::File::create(self.dir.join(format!("{name}.out"))).unwrap();
        Command::new(program(name))
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

    /// What a command of Slurm's prints.
    pub fn says(&self, name: &str, args: &[&str]) -> String {
        String::from_utf8(self.run(name, args).stdout).unwrap()
    }

    /// Every job of the run that the cluster remembers, ended or not: its state and where it is.
    pub fn jobs_of(&self, run: &str) -> Vec<String> {
        let told = self.says("squeue", &["--noheader", "--states=all", &format!("--name={run}"), "--format=%T %N"]);
        told.lines().map(str::to_owned).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.run("scancel", &["--me", "--quiet", "--signal=KILL", "--full"]);
        for node in &mut self.nodes {
            end(node.take());
        }
        end(self.controller.take());
        self.munged.kill().ok();
        self.munged.wait().ok();
        // What a killed node's daemon left is told by the folder in its arguments.
        let mark = self.dir.display().to_string();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if [line, environment].iter().any(|text| String::from_utf8_lossy(text).contains(&mark))
                && let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>()
                && pid.unsigned_abs() != std::process::id()
            {
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).ok();
            }
        }
    }
}

/// Waits until `is` holds.
pub fn wait(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn end(daemon: Option<Child>) {
    if let Some(mut daemon) = daemon {
        daemon.kill().ok();
        daemon.wait().ok();
    }
}

/// Three ports that are free now; held together, so that they differ.
fn free_ports() -> Vec<u16> {
    let held: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| name.into())
}

fn is_installed() -> bool {
    let there = ["slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel"].iter().all(|name| program(name).exists());
    there && fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
