//! A disk that loses its power: an ext4 image on a loop device.
//!
//! A cut is `EXT4_IOC_SHUTDOWN` without a flush of the journal, the call that xfstests uses: from
//! then on nothing more reaches the image, and what was only in the page cache is lost.

use std::{
    env,
    fs::File,
    io::Write,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use super::service::POLL;

/// `_IOR('X', 125, __u32)` of `fs/ext4/ext4.h`.
const EXT4_IOC_SHUTDOWN: nix::libc::Ioctl = 0x8004_587d;
/// Do not write the journal out.
const NO_LOG_FLUSH: u32 = 2;
/// Size of the disk; its image is sparse.
const BYTES: u64 = 4 << 30;
/// Time for the processes of a killed service to leave the disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// A mounted image; unmounted and removed on drop.
pub struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// Creates and mounts a disk. `None` if loop devices are not permitted, unless
    /// LLMPROF_REQUIRE_LOOP=1.
    pub fn create() -> Option<Self> {
        let disk = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(disk.root()).unwrap();
        File::create(disk.image()).unwrap().set_len(BYTES).unwrap();
        let made = run(Command::new("mkfs.ext4").arg("-qF").arg(disk.image()));
        let made = made.and_then(|()| disk.mount());
        let required = env::var_os("LLMPROF_REQUIRE_LOOP").is_some_and(|value| value == "1");
        match made {
            Ok(()) => Some(disk),
            Err(error) => {
                assert!(!required, "cannot mount a disk image: {error}");
                eprintln!("skipped: cannot mount a disk image: {error}");
                None
            }
        }
    }

    /// Root folder of the disk.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(self.root()))
    }

    /// Cuts the power. Files stay open and every access fails, until [`Disk::restore_power`].
    pub fn cut_power(&self) {
        let (root, flags) = (File::open(self.root()).unwrap(), NO_LOG_FLUSH);
        // SAFETY: the call reads one integer behind the pointer, which lives until it returns.
        let done =
            unsafe { nix::libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const flags) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Mounts the disk again, as after a boot. No process may use it.
    pub fn restore_power(&self) {
        self.unmount();
        let checked = Command::new("e2fsck").arg("-p").arg(self.image()).output().unwrap();
        // 1: the journal was replayed.
        assert!(matches!(checked.status.code(), Some(0 | 1)), "{}", printed(&checked));
        self.mount().unwrap();
    }

    fn unmount(&self) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = run(Command::new("umount").arg(self.root())) {
            assert!(Instant::now() < deadline, "cannot unmount: {error}");
            std::thread::sleep(POLL);
        }
        // Mount namespaces of other processes may still use it.
        while self.is_attached() {
            assert!(Instant::now() < deadline, "the image stays attached to a loop device");
            std::thread::sleep(POLL);
        }
    }

    fn is_attached(&self) -> bool {
        let listed = Command::new("losetup").arg("-j").arg(self.image()).output().unwrap();
        !listed.stdout.is_empty()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if is_mounted(&self.root()) {
            run(Command::new("umount").arg("-l").arg(self.root())).ok();
        }
    }
}

/// Fills the disk of `path` to its last byte.
pub fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for block in [64 << 20, 1 << 20, 4096, 512, 1] {
        let block = vec![7; block];
        while file.write_all(&block).is_ok() {}
    }
    let _ = file.sync_all();
}

/// Fills the disk of `path` until this many bytes are free, by a file without content.
pub fn fill_until(path: &Path, free: u64) {
    let file = File::create(path).unwrap();
    let disk = nix::sys::statvfs::statvfs(path).unwrap();
    let bytes = disk.blocks_available() * disk.fragment_size() - free;
    let flags = nix::fcntl::FallocateFlags::empty();
    nix::fcntl::fallocate(&file, flags, 0, i64::try_from(bytes).unwrap()).unwrap();
}

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

fn run(command: &mut Command) -> Result<(), String> {
    let done = command.output().map_err(|error| error.to_string())?;
    if done.status.success() { Ok(()) } else { Err(printed(&done)) }
}

fn printed(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}
