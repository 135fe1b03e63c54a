//! Calls of the operating system and its libraries, as nsys traces them, by their names.

/// Names of calls in which a thread does nothing but wait or sleep, without leading underscores.
/// Calls that transfer data wait for it, too, and are not among these: they are named as work.
const WAITS: [&str; 54] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "cnd_timedwait",
    "cnd_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "flock",
    "futex",
    "futex_wait",
    "futex_waitv",
    "lockf",
    "mtx_lock",
    "mtx_timedlock",
    "nanosleep",
    "pause",
    "poll",
    "poll_chk",
    "ppoll",
    "ppoll_chk",
    "pselect",
    "pthread_barrier_wait",
    "pthread_cond_clockwait",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_mutex_clocklock",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock",
    "pthread_rwlock_wrlock",
    "pthread_spin_lock",
    "pthread_timedjoin_np",
    "select",
    "sem_clockwait",
    "sem_timedwait",
    "sem_wait",
    "semop",
    "semtimedop",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
    "sleep",
    "thrd_join",
    "thrd_sleep",
    "usleep",
    "wait",
    "wait4",
    "waitid",
    "waitpid",
];

/// True for a call in which a thread waits or sleeps: `pthread_cond_wait`, `__poll`.
pub fn waits(name: &str) -> bool {
    WAITS.contains(&name.trim_start_matches('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_by_its_name_and_a_transfer_of_data_does_not() {
        let expected = [
            ("poll", true),
            ("__poll", true),
            ("futex", true),
            ("pthread_cond_timedwait", true),
            ("clock_nanosleep", true),
            ("waitpid", true),
            ("getc", false),
            ("read", false),
            ("ioctl", false),
            ("pthread_create", false),
            ("pollution", false),
            ("", false),
        ];
        for (name, is_wait) in expected {
            assert_eq!(waits(name), is_wait, "{name}");
        }
    }

    #[test]
    fn the_names_are_in_order_and_each_is_listed_once() {
        assert!(WAITS.is_sorted_by(|a, b| a < b));
    }
}
