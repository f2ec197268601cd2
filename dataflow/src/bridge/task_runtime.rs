//! The threads on which an operator's futures run.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};

use super::tasks::Executor;

/// A tokio runtime with timers and I/O for the futures of operators.
///
/// Dropping it waits neither for blocking calls nor for futures that are being polled, so work that never returns cannot delay the end of
/// a run. The thread of such work ends when the work returns, or with the process.
#[derive(Debug)]
pub struct TaskRuntime(Option<Runtime>);

impl TaskRuntime {
    /// Starts a runtime with `threads` threads of the given name, for futures; blocking calls get threads of their own.
    ///
    /// # Errors
    /// If the system refuses a resource for timers or I/O, such as an epoll instance.
    ///
    /// # Panics
    /// If `threads` is 0, or the system cannot start a thread.
    pub fn start(threads: usize, name: &str) -> io::Result<Self> {
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(threads).thread_name(name).enable_all();
        Ok(Self(Some(runtime.build()?)))
    }

    /// Returns a handle for spawning futures and blocking calls on the runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("invariant: the runtime is taken when it is dropped").handle()
    }

    /// Returns the executor that runs futures on the runtime.
    #[must_use]
    pub fn executor(&self) -> Executor {
        Executor::Tokio(self.handle().clone())
    }
}

impl Drop for TaskRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn dropping_a_runtime_does_not_wait_for_a_blocking_call() {
        let runtime = TaskRuntime::start(1, "task").unwrap();
        let (begun, begins) = channel();
        let (release, released) = channel::<()>();
        let call = runtime.handle().spawn_blocking(move || {
            begun.send(()).unwrap();
            released.recv().is_err()
        });
        begins.recv().unwrap();
        drop(runtime);
        assert!(!call.is_finished(), "the call still waits");
        drop(release);
    }
}
