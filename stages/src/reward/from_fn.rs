//! Functions as rewards.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinError};

use super::{Context, Reward, RewardError, Sample, Score};

/// Turns a function of a sample into a reward.
///
/// The function may compute for long or block: within a tokio runtime it is called on a thread for blocking work, otherwise on the current
/// thread. A panic becomes a [fatal](super::ErrorKind::Fatal) error, unless
/// [`stop_on_panic`](rollpacker_dataflow::fault::stop_on_panic) was called, which makes it end the process. A running function cannot be
/// cancelled from outside; see [`from_fn_with`] for functions that check for cancellation.
///
/// ```
/// use rollpacker_stages::reward::{Router, from_fn};
///
/// let terse = from_fn(|sample| Ok((sample.response.len() <= 20).into()));
/// let router = Router::default().route("*", terse);
/// ```
pub fn from_fn<F>(function: F) -> FromFn<impl Fn(&Sample, &Context) -> Result<Score, RewardError>>
where
    F: Fn(&Sample) -> Result<Score, RewardError> + Send + Sync + 'static,
{
    from_fn_with(move |sample: &Sample, _: &Context| function(sample))
}

/// Turns a function of a sample and a [`Context`] into a reward. With the context, the function can check for cancellation. It is called as
/// the function of [`from_fn`] is.
pub fn from_fn_with<F>(function: F) -> FromFn<F>
where
    F: Fn(&Sample, &Context) -> Result<Score, RewardError> + Send + Sync + 'static,
{
    FromFn(Arc::new(function))
}

/// A function as a reward, returned by [`from_fn`] and [`from_fn_with`].
pub struct FromFn<F>(Arc<F>);

impl<F> Reward for FromFn<F>
where
    F: Fn(&Sample, &Context) -> Result<Score, RewardError> + Send + Sync + 'static,
{
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let Ok(runtime) = Handle::try_current() else {
            return call(&*self.0, sample, context);
        };
        let (function, sample, context) = (Arc::clone(&self.0), sample.clone(), context.nested());
        let watched = context.clone();
        let call = runtime.spawn_blocking(move || call(&*function, &sample, &context));
        let _cancel_on_drop = CancelOnDrop { context: watched, call: call.abort_handle() };
        call.await.unwrap_or_else(|error| Err(not_called_error(&error)))
    }
}

/// A guard that cancels the context of a call when the call is dropped, and the call itself if it has not started.
struct CancelOnDrop {
    context: Context,
    call: AbortHandle,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.context.cancel();
        self.call.abort();
    }
}

fn call<F>(function: &F, sample: &Sample, context: &Context) -> Result<Score, RewardError>
where
    F: Fn(&Sample, &Context) -> Result<Score, RewardError>,
{
    catch_unwind(AssertUnwindSafe(|| function(sample, context)))
        .unwrap_or_else(|panic| Err(panic_error(&*panic)))
}

fn panic_error(panic: &(dyn Any + Send)) -> RewardError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    RewardError::fatal(format_args!("panicked: {}", text.unwrap_or("without a message")))
}

/// Returns the error of a call that was not made because the runtime shuts down.
fn not_called_error(error: &JoinError) -> RewardError {
    RewardError::retryable(format_args!("the call was not made: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::executor::block_on;

    use super::*;
    use crate::reward::ErrorKind;

    fn sample() -> Sample {
        Sample::of("any", "four", None)
    }

    #[test]
    fn without_a_runtime_the_function_is_called_inline() {
        let here = std::thread::current().id();
        let reward = from_fn(move |sample| {
            assert_eq!(std::thread::current().id(), here);
            Ok((sample.response.len() as f64).into())
        });
        assert_eq!(block_on(reward.score(&sample(), &Context::detached())), Ok(4.0.into()));
    }

    #[tokio::test]
    async fn on_a_runtime_the_function_blocks_no_thread_of_the_runtime() {
        let here = std::thread::current().id();
        let (sender, receiver) = mpsc::channel();
        let reward = from_fn(move |_| {
            sender.send(std::thread::current().id()).expect("is read");
            Ok(true.into())
        });
        reward.score(&sample(), &Context::detached()).await.expect("scores");
        assert_ne!(receiver.recv().expect("was called"), here);
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let reward = from_fn(|sample| panic!("no {}", sample.response));
        let error = reward.score(&sample(), &Context::detached()).await.expect_err("panics");
        assert_eq!((error.kind, error.reason.as_str()), (ErrorKind::Fatal, "panicked: no four"));
        let error = block_on(from_fn(|_| panic!("no")).score(&sample(), &Context::detached()));
        assert_eq!(error.expect_err("panics").reason, "panicked: no");
    }

    #[tokio::test]
    async fn a_dropped_call_is_cancelled_and_its_caller_is_not() {
        let (started, begun) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        let reward = from_fn_with(move |_: &Sample, context: &Context| {
            started.send(()).expect("is read");
            while !context.is_cancelled() {
                std::thread::yield_now();
            }
            ended.send(()).expect("is read");
            Ok(true.into())
        });
        let (sample, context) = (sample(), Context::detached());
        let mut call = Box::pin(reward.score(&sample, &context));
        assert!(futures::poll!(&mut call).is_pending());
        begun.recv().expect("begins");
        drop(call);
        end.recv().expect("ends");
        assert!(!context.is_cancelled());
    }
}
