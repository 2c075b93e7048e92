//! Threads that give way to others.

/// Nice value of background threads: a third of the processor time of a normal thread that wants the same core.
const NICE: i32 = 5;

/// Lowers the priority of the calling thread, for work that others do not wait for, such as the save of a checkpoint: where
/// cores are few, a push would otherwise wait for the time slice of a thread that computes a checksum. Whatever the thread
/// starts later has this priority too. Where the system refuses, the priority stays.
pub fn lower_priority_of_thread() {
    // On Linux a thread's own number names the thread alone (setpriority(2), "C library/kernel differences").
    let thread = rustix::thread::gettid();
    if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
        tracing::debug!(%error, "priority_not_lowered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gives_way() {
        let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid()));
        let before = nice().expect("readable");
        let lowered = std::thread::spawn(move || {
            lower_priority_of_thread();
            nice().expect("readable")
        });
        assert_eq!(lowered.join().expect("it ends"), before.max(NICE));
        assert_eq!(nice().expect("readable"), before);
    }
}
