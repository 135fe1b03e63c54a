//! The pace of an upload: bytes received in the time that was spent waiting for the client.

use std::time::Duration;

/// Bytes and time of the current window. The service's own time does not count.
#[derive(Debug, Clone, Copy)]
pub struct UploadPace {
    bytes_per_s: u32,
    window: Duration,
    waited: Duration,
    bytes: u64,
}

impl UploadPace {
    /// A minimum of bytes per second, on average over each window; at least one byte per window.
    pub fn new(bytes_per_s: u32, window_s: u32) -> Self {
        let window = Duration::from_secs(window_s.max(1).into());
        Self { bytes_per_s, window, waited: Duration::ZERO, bytes: 0 }
    }

    /// Time until the end of the window.
    pub(super) fn left(&self) -> Duration {
        self.window.saturating_sub(self.waited)
    }

    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    pub(super) fn add_wait(&mut self, time: Duration) {
        self.waited += time;
    }

    /// Starts the next window at the end of one; returns the reason if the client was too slow.
    pub(super) fn check(&mut self) -> Result<(), String> {
        if self.waited < self.window {
            return Ok(());
        }
        let seconds = self.window.as_secs();
        let (bytes, least) = (self.bytes, u64::from(self.bytes_per_s) * seconds);
        if bytes < least.max(1) {
            return Err(format!(
                "the upload is too slow: {bytes} bytes in {seconds} seconds; at least {} bytes per \
                 second are required (access.upload_bytes_per_s)",
                self.bytes_per_s
            ));
        }
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks after each step of bytes and seconds; returns the number of steps before it fails.
    fn steps(pace: &mut UploadPace, bytes: usize, seconds: f64) -> Option<usize> {
        (0..1000).find(|_| {
            pace.add_wait(Duration::from_secs_f64(seconds));
            pace.add_bytes(bytes);
            pace.check().is_err()
        })
    }

    #[test]
    fn only_a_client_below_the_pace_is_too_slow() {
        let pace = || UploadPace::new(1000, 30);
        assert_eq!(steps(&mut pace(), 1, 1.0), Some(29), "a byte per second");
        assert_eq!(steps(&mut pace(), 0, 1.0), Some(29), "a pause");
        assert_eq!(steps(&mut pace(), 1000, 1.0), None);
        assert_eq!(steps(&mut pace(), 20_000, 15.0), None, "uneven, and fast enough on average");
        let mut late = pace();
        assert_eq!(steps(&mut late, 1 << 20, 0.0), None);
        assert_eq!(late.bytes, 1000 << 20, "no time was spent waiting for the client");
        assert_eq!(steps(&mut UploadPace::new(0, 30), 1, 20.0), None, "no minimum");
    }
}
