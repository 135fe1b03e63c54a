//! Settings of glibc's allocator, by which it returns freed memory to the system.

/// Returns large blocks as soon as they are freed. By default glibc keeps blocks of up to 32 MiB.
/// Called before a thread is started.
#[cfg(target_env = "gnu")]
pub fn return_large_blocks() {
    use nix::libc::{M_MMAP_THRESHOLD, mallopt};
    // SAFETY: sets a parameter of the allocator, which this thread alone uses.
    unsafe { mallopt(M_MMAP_THRESHOLD, 128 << 10) };
}

/// Limits the heaps of a program that stays: by default glibc keeps up to eight per core. Called
/// before a thread is started.
#[cfg(target_env = "gnu")]
pub fn limit_heaps() {
    use nix::libc::{M_ARENA_MAX, mallopt};
    // SAFETY: sets a parameter of the allocator, which this thread alone uses.
    unsafe { mallopt(M_ARENA_MAX, 2) };
}

/// Returns freed memory between blocks in use, once a minute.
#[cfg(target_env = "gnu")]
pub async fn trim_memory() {
    let mut minutes = tokio::time::interval(std::time::Duration::from_secs(60));
    loop {
        minutes.tick().await;
        // SAFETY: has no preconditions.
        unsafe { nix::libc::malloc_trim(0) };
    }
}

#[cfg(not(target_env = "gnu"))]
pub fn return_large_blocks() {}

#[cfg(not(target_env = "gnu"))]
pub fn limit_heaps() {}

#[cfg(not(target_env = "gnu"))]
pub async fn trim_memory() {}
