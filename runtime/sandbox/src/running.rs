//! A guest on its threads: polled, moved among the busy ones, held back by the shares, ended.
//!
//! ```text
//!  call ─► call threads ── a whole tick used up ──► busy threads (niced) ─┐
//!                │                                                        ├─► answer, panic, abort
//!  task ─────────┼──────── its turn by weight ────► busy threads ─────────┘
//! ```
//! A short call never queues behind a guest that spins: whoever needs more than one tick goes on
//! elsewhere. The guest is dropped before its answer is told, so who has the answer knows that
//! nothing of it is left.

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
use super::meter::{CpuMeter, Metered};
use super::share::{Member, Shares};
use ostler_model::limits;
use ostler_model::shown::shown;

/// A running guest. Dropping it aborts the guest.
#[derive(Debug)]
pub struct GuestTask<T> {
    pub(super) at: At<T>,
    pub(super) cpu: CpuMeter,
}

/// Where a guest is.
#[derive(Debug)]
pub(super) enum At<T> {
    Thread {
        answer: oneshot::Receiver<Result<T, CallError>>,
        end: Arc<End>,
    },
    /// At its end; what it gave, until that is taken.
    End(Option<Result<T, CallError>>),
}

impl<T> GuestTask<T> {
    /// The guest's processor time; the meter may be kept after the guest is gone.
    #[must_use]
    pub fn cpu(&self) -> CpuMeter {
        self.cpu.clone()
    }

    /// Stop the guest at its next yield and drop its store. [`GuestTask::join`] tells when it is
    /// gone.
    pub fn abort(&self) {
        if let At::Thread { end, .. } = &self.at {
            end.abort();
        }
    }

    /// What it gave, when it ended on the thread of its caller: no wait and no timer is needed. As
    /// with [`GuestTask::join`], once.
    pub const fn ended_near(&mut self) -> Option<Result<T, CallError>> {
        match &mut self.at {
            At::End(result) => result.take(),
            At::Thread { .. } => None,
        }
    }

    /// Wait for the end. May be cancelled and called again, but not after it has answered.
    ///
    /// # Errors
    /// What the guest failed with; [`CallError::Cancelled`] after an abort;
    /// [`CallError::HostPanic`] when a host function panicked.
    pub async fn join(&mut self) -> Result<T, CallError> {
        match &mut self.at {
            At::End(result) => result.take().unwrap_or(Err(CallError::Cancelled)),
            At::Thread { answer, .. } => answer.await.unwrap_or(Err(CallError::Cancelled)),
        }
    }
}

impl<T> Drop for GuestTask<T> {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Whether a guest is to end, and whom to wake to see it.
#[derive(Debug, Default)]
pub(super) struct End {
    asked: AtomicBool,
    waker: AtomicWaker,
}

impl End {
    fn abort(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    fn asked(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.asked.load(Ordering::SeqCst)
    }
}

/// May the host functions of a guest hold the thread they run on, as reading a file can?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// They return soon.
    Never,
    /// Perhaps for good. While it is polled another thread looks after the other guests, so it holds
    /// nobody but itself.
    Maybe,
}

impl Blocks {
    /// Do what may block.
    fn while_others_run<R>(self, work: impl FnOnce() -> R) -> R {
        match self {
            Self::Never => work(),
            Self::Maybe => tokio::task::block_in_place(work),
        }
    }
}

/// What holds a guest back, or where it goes when it computes long.
pub(super) enum Place {
    /// A call on the call threads: these are the busy ones.
    Call(Handle),
    /// A call among the busy.
    Busy,
    /// A WASM task: its turn among the others.
    Task(TaskSlot),
}

/// A guest, polled until it has answered.
pub(super) struct Running<F, T> {
    guest: Option<Metered<F>>,
    answer: Option<oneshot::Sender<Result<T, CallError>>>,
    end: Arc<End>,
    place: Place,
    blocks: Blocks,
}

// Its parts are boxed or plain: nothing is pinned in place.
impl<F, T> Unpin for Running<F, T> {}

impl<F, T> Running<F, T> {
    pub(super) const fn new(
        guest: Metered<F>,
        answer: oneshot::Sender<Result<T, CallError>>,
        end: Arc<End>,
        place: Place,
        blocks: Blocks,
    ) -> Self {
        Self { guest: Some(guest), answer: Some(answer), end, place, blocks }
    }

    fn over(&mut self, result: Result<T, CallError>) -> Poll<()> {
        // A store whose destructor panics must not take the answer along.
        let guest = self.guest.take();
        let gone = || catch_unwind(AssertUnwindSafe(|| drop(guest)));
        let _dropped = self.blocks.while_others_run(gone);
        if let Some(answer) = self.answer.take() {
            // Nobody may be waiting any more.
            let _unheard = answer.send(result);
        }
        Poll::Ready(())
    }
}

impl<F, T> Future for Running<F, T>
where
    F: Future<Output = Result<T, CallError>> + Send + 'static,
    T: Send + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.end.asked(context.waker()) {
            return this.over(Err(CallError::Cancelled));
        }
        let Some(guest) = &mut this.guest else { return Poll::Ready(()) };
        let poll = |guest: &mut Metered<F>, context: &mut Context<'_>| {
            catch_unwind(AssertUnwindSafe(|| Pin::new(guest).poll(context)))
        };
        let polled = match &mut this.place {
            Place::Call(_) | Place::Busy => this.blocks.while_others_run(|| poll(guest, context)),
            Place::Task(slot) => {
                if !slot.comes(context.waker()) {
                    return Poll::Pending;
                }
                let polled = poll(guest, &mut Context::from_waker(&slot.waker()));
                slot.over(guest.last_poll());
                polled
            }
        };
        match polled {
            Err(panic) => this.over(Err(CallError::HostPanic { message: panic_text(&*panic) })),
            Ok(Poll::Ready(result)) => this.over(result),
            // Asked to end while it was polled: not once more behind everybody else's turn.
            Ok(Poll::Pending) if this.end.asked.load(Ordering::SeqCst) => {
                this.over(Err(CallError::Cancelled))
            }
            Ok(Poll::Pending) => {
                if guest.last_poll() >= limits::CALL_BUSY
                    && let Place::Call(busy) = &this.place
                {
                    let busy = busy.clone();
                    let (guest, answer) = (this.guest.take(), this.answer.take());
                    let (end, blocks) = (Arc::clone(&this.end), this.blocks);
                    busy.spawn(Self { guest, answer, end, place: Place::Busy, blocks });
                    return Poll::Ready(());
                }
                Poll::Pending
            }
        }
    }
}

/// Lets others have the thread once. For long work on behalf of a guest, between two of its parts.
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
    shown(text.unwrap_or_else(|| "no message".to_owned()), limits::GUEST_ERROR_BYTES_MAX)
}

/// Schedules all WASM tasks by their weights.
pub(super) struct TaskScheduler(Mutex<(Shares, std::collections::HashMap<Member, Arc<Called>>)>);

impl TaskScheduler {
    /// So many may compute at once.
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((Shares::new(places), std::collections::HashMap::new()))))
    }

    /// One more task.
    pub(super) fn join(self: &Arc<Self>, weight: u32) -> TaskSlot {
        let called = Arc::new(Called::default());
        let mut scheduler = self.lock();
        let member = scheduler
            .0
            .join(weight.clamp(*limits::TASK_WEIGHT.start(), *limits::TASK_WEIGHT.end()));
        scheduler.1.insert(member, Arc::clone(&called));
        drop(scheduler);
        TaskSlot { scheduler: Arc::clone(self), member, called }
    }

    /// An epoch tick passed: whoever kept its thread through several does not keep its place as well.
    pub(super) fn tick(&self) {
        self.change(Shares::tick);
    }

    fn lock(&self) -> MutexGuard<'_, (Shares, std::collections::HashMap<Member, Arc<Called>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Change something and wake those who are granted a place by it.
    fn change(&self, change: impl FnOnce(&mut Shares) -> Vec<Member>) {
        let mut scheduler = self.lock();
        let granted = change(&mut scheduler.0);
        let called: Vec<_> = granted.iter().filter_map(|m| scheduler.1.get(m).cloned()).collect();
        drop(scheduler);
        called.iter().for_each(|called| called.task.wake());
    }
}

/// One task's place among the others; given back when dropped.
pub(super) struct TaskSlot {
    scheduler: Arc<TaskScheduler>,
    member: Member,
    called: Arc<Called>,
}

impl TaskSlot {
    /// May it be polled now? If not, `waker` is woken when it may.
    fn comes(&self, waker: &Waker) -> bool {
        self.called.task.register(waker);
        self.called.woken.store(false, Ordering::SeqCst);
        self.scheduler.lock().0.ask(self.member)
    }

    /// Tells whether the guest asked to be polled again, as one does that a tick interrupted.
    fn waker(&self) -> Waker {
        Arc::clone(&self.called).into()
    }

    fn over(&self, used: std::time::Duration) {
        let goes_on = self.called.woken.load(Ordering::SeqCst);
        self.scheduler.change(|shares| shares.polled(self.member, used, goes_on));
    }
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        self.scheduler.lock().1.remove(&self.member);
        self.scheduler.change(|shares| shares.leave(self.member));
    }
}

/// The task behind a guest's waker.
#[derive(Default)]
struct Called {
    task: AtomicWaker,
    woken: AtomicBool,
}

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}
