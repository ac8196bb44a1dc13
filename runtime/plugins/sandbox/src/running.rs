//! Runs a guest on its threads: polls it, moves it to the busy threads, makes it wait for its
//! turn, ends it.
//!
//! ```text
//!  call ─► call threads ── a whole tick used up ──► busy threads (niced) ─┐
//!                │                                                        ├─► answer, panic, abort
//!  task ─────────┼──────── its turn by weight ────► busy threads ─────────┘
//! ```
//! A short call never queues behind a guest that spins, because a guest that needs more than one
//! tick goes on elsewhere. The guest is dropped before its answer is sent. So whoever has the
//! answer knows that nothing of the guest is left.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::CallError;
use super::meter::{CpuMeter, MeteredGuest};
use super::share::{Member, TaskShares};
use ostler_model::limits;
use ostler_model::printable::printable_line;

/// A running guest. Dropping it aborts the guest.
#[derive(Debug)]
pub struct GuestTask<T> {
    pub(super) at: GuestState<T>,
    pub(super) cpu: CpuMeter,
}

/// Whether a guest runs on a thread or has ended.
#[derive(Debug)]
pub(super) enum GuestState<T> {
    Thread {
        answer: oneshot::Receiver<Result<T, CallError>>,
        end: Arc<AbortRequest>,
    },
    /// The guest ended. Its result is here until it is taken.
    End(Option<Result<T, CallError>>),
}

impl<T> GuestTask<T> {
    /// The guest's processor time; the meter may be kept after the guest is gone.
    #[must_use]
    pub fn cpu(&self) -> CpuMeter {
        self.cpu.clone()
    }

    /// Stop the guest at its next yield and drop its store. [`GuestTask::join`] returns when
    /// it is gone.
    pub fn abort(&self) {
        if let GuestState::Thread { end, .. } = &self.at {
            end.abort();
        }
    }

    /// Take the result of a guest that ended on its caller's thread; then no wait and no timer is
    /// needed. As with [`GuestTask::join`], it can be taken once.
    pub const fn take_inline_result(&mut self) -> Option<Result<T, CallError>> {
        match &mut self.at {
            GuestState::End(result) => result.take(),
            GuestState::Thread { .. } => None,
        }
    }

    /// Wait for the end of the guest. The wait may be cancelled and repeated, but not after
    /// it has returned.
    ///
    /// # Errors
    /// What the guest failed with; [`CallError::Cancelled`] after an abort;
    /// [`CallError::HostPanic`] when a host function panicked.
    pub async fn join(&mut self) -> Result<T, CallError> {
        match &mut self.at {
            GuestState::End(result) => result.take().unwrap_or(Err(CallError::Cancelled)),
            GuestState::Thread { answer, .. } => answer.await.unwrap_or(Err(CallError::Cancelled)),
        }
    }
}

impl<T> Drop for GuestTask<T> {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Ends a guest at its next yield.
#[derive(Debug)]
pub struct GuestAbort(pub(super) Arc<AbortRequest>);

impl GuestAbort {
    /// Stop the guest at its next yield and drop its store.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// Who gets the result of a guest.
pub(super) enum AnswerTo<T> {
    /// Whoever waits for it.
    Waiter(oneshot::Sender<Result<T, CallError>>),
    /// A function, which is called on the thread of the guest.
    Function(EndFunction<T>),
}

type TakeResult<T> = Box<dyn FnOnce(Result<T, CallError>) + Send>;

/// A function that takes the result of a guest. It is called once, also when the guest is dropped
/// unfinished.
pub(super) struct EndFunction<T>(Option<TakeResult<T>>);

impl<T> EndFunction<T> {
    pub(super) fn new(then: impl FnOnce(Result<T, CallError>) + Send + 'static) -> Self {
        Self(Some(Box::new(then)))
    }

    fn call(&mut self, result: Result<T, CallError>) {
        if let Some(then) = self.0.take() {
            then(result);
        }
    }
}

impl<T> Drop for EndFunction<T> {
    fn drop(&mut self) {
        self.call(Err(CallError::Cancelled));
    }
}

/// Whether a guest is asked to end, and the task to wake so that it notices.
#[derive(Debug, Default)]
pub(super) struct AbortRequest {
    asked: AtomicBool,
    waker: AtomicWaker,
}

impl AbortRequest {
    fn abort(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    fn poll_abort(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.asked.load(Ordering::SeqCst)
    }
}

/// Whether host functions of a guest may hold the thread they run on, as reading a file can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostBlocking {
    /// All host functions return soon.
    Never,
    /// A host function may never return. While the guest is polled, another thread runs the other
    /// guests, so the guest holds up nobody but itself.
    Maybe,
}

impl HostBlocking {
    /// Do work that may block. Where it may, another thread runs the other guests meanwhile.
    fn run_blocking<R>(self, work: impl FnOnce() -> R) -> R {
        match self {
            Self::Never => work(),
            Self::Maybe => tokio::task::block_in_place(work),
        }
    }
}

/// On which threads a guest runs, and what it waits for.
pub(super) enum ThreadClass {
    /// A call on the call threads. The handle is that of the busy threads, where it goes when
    /// it computes long.
    Call(Handle),
    /// A call on the busy threads.
    Busy,
    /// A WASM task on the busy threads, which waits for its turn among the others.
    Task(TaskSlot),
}

/// A guest that is polled until it has answered.
pub(super) struct RunningGuest<F, T> {
    guest: Option<MeteredGuest<F>>,
    answer: Option<AnswerTo<T>>,
    end: Arc<AbortRequest>,
    place: ThreadClass,
    blocks: HostBlocking,
}

// All fields are boxed or plain data: nothing is pinned in place.
impl<F, T> Unpin for RunningGuest<F, T> {}

impl<F, T> RunningGuest<F, T> {
    pub(super) const fn new(
        guest: MeteredGuest<F>,
        answer: AnswerTo<T>,
        end: Arc<AbortRequest>,
        place: ThreadClass,
        blocks: HostBlocking,
    ) -> Self {
        Self { guest: Some(guest), answer: Some(answer), end, place, blocks }
    }

    fn finish(&mut self, result: Result<T, CallError>) -> Poll<()> {
        // A store whose destructor panics must not take the answer along.
        let guest = self.guest.take();
        let gone = || catch_unwind(AssertUnwindSafe(|| drop(guest)));
        let _dropped = self.blocks.run_blocking(gone);
        match self.answer.take() {
            Some(AnswerTo::Waiter(answer)) => {
                // Nobody may be waiting any more.
                let _unheard = answer.send(result);
            }
            Some(AnswerTo::Function(mut then)) => then.call(result),
            None => {}
        }
        Poll::Ready(())
    }
}

impl<F, T> Future for RunningGuest<F, T>
where
    F: Future<Output = Result<T, CallError>> + Send + 'static,
    T: Send + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.end.poll_abort(context.waker()) {
            return this.finish(Err(CallError::Cancelled));
        }
        let Some(guest) = &mut this.guest else { return Poll::Ready(()) };
        let poll = |guest: &mut MeteredGuest<F>, context: &mut Context<'_>| {
            catch_unwind(AssertUnwindSafe(|| Pin::new(guest).poll(context)))
        };
        let polled = match &mut this.place {
            ThreadClass::Call(_) | ThreadClass::Busy => {
                this.blocks.run_blocking(|| poll(guest, context))
            }
            ThreadClass::Task(slot) => {
                if !slot.is_turn(context.waker()) {
                    return Poll::Pending;
                }
                let polled = poll(guest, &mut Context::from_waker(&slot.waker()));
                slot.finish_poll(guest.last_poll());
                polled
            }
        };
        match polled {
            Err(panic) => this.finish(Err(CallError::HostPanic { message: panic_text(&*panic) })),
            Ok(Poll::Ready(result)) => this.finish(result),
            // It was asked to end while it was polled: it does not wait for another turn.
            Ok(Poll::Pending) if this.end.asked.load(Ordering::SeqCst) => {
                this.finish(Err(CallError::Cancelled))
            }
            Ok(Poll::Pending) => {
                if guest.last_poll() >= limits::CALL_BUSY
                    && let ThreadClass::Call(busy) = &this.place
                {
                    let busy = busy.clone();
                    let (guest, answer) = (this.guest.take(), this.answer.take());
                    let (end, blocks) = (Arc::clone(&this.end), this.blocks);
                    busy.spawn(Self { guest, answer, end, place: ThreadClass::Busy, blocks });
                    return Poll::Ready(());
                }
                Poll::Pending
            }
        }
    }
}

/// Let others have the thread once. This belongs between two parts of long work for a guest.
pub async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    printable_line(text.unwrap_or_else(|| "no message".to_owned()), limits::GUEST_ERROR_BYTES_MAX)
}

/// Schedules all WASM tasks by their weights.
pub(super) struct TaskScheduler(
    Mutex<(TaskShares, std::collections::HashMap<Member, Arc<TaskWaker>>)>,
);

impl TaskScheduler {
    /// A scheduler without tasks, in which `places` tasks may compute at once.
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((TaskShares::new(places), std::collections::HashMap::new()))))
    }

    /// Add a task with this weight.
    pub(super) fn join(self: &Arc<Self>, weight: u32) -> TaskSlot {
        let called = Arc::new(TaskWaker::default());
        let mut scheduler = self.lock();
        let member = scheduler
            .0
            .join(weight.clamp(*limits::TASK_WEIGHT.start(), *limits::TASK_WEIGHT.end()));
        scheduler.1.insert(member, Arc::clone(&called));
        drop(scheduler);
        TaskSlot { scheduler: Arc::clone(self), member, called }
    }

    /// Count an epoch tick. A task that kept its thread through several ticks gives its
    /// place to another.
    pub(super) fn tick(&self) {
        self.change(TaskShares::tick);
    }

    fn lock(
        &self,
    ) -> MutexGuard<'_, (TaskShares, std::collections::HashMap<Member, Arc<TaskWaker>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Change the shares, and wake the tasks that are granted a place by that.
    fn change(&self, change: impl FnOnce(&mut TaskShares) -> Vec<Member>) {
        let mut scheduler = self.lock();
        let granted = change(&mut scheduler.0);
        let called: Vec<_> = granted.iter().filter_map(|m| scheduler.1.get(m).cloned()).collect();
        drop(scheduler);
        called.iter().for_each(|called| called.task.wake());
    }
}

/// The membership of one task in the scheduler. Dropping it removes the task.
pub(super) struct TaskSlot {
    scheduler: Arc<TaskScheduler>,
    member: Member,
    called: Arc<TaskWaker>,
}

impl TaskSlot {
    /// May the task be polled now? If not, `waker` is woken when it may.
    fn is_turn(&self, waker: &Waker) -> bool {
        self.called.task.register(waker);
        self.called.woken.store(false, Ordering::SeqCst);
        self.scheduler.lock().0.ask(self.member)
    }

    /// A waker that records that the guest asked to be polled again, as a guest does that
    /// a tick interrupted.
    fn waker(&self) -> Waker {
        Arc::clone(&self.called).into()
    }

    fn finish_poll(&self, used: std::time::Duration) {
        let goes_on = self.called.woken.load(Ordering::SeqCst);
        self.scheduler.change(|shares| shares.finish_poll(self.member, used, goes_on));
    }
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        self.scheduler.lock().1.remove(&self.member);
        self.scheduler.change(|shares| shares.leave(self.member));
    }
}

/// The waker that a guest gets. It wakes the task of the runtime, and records that it was called.
#[derive(Default)]
struct TaskWaker {
    task: AtomicWaker,
    woken: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}
