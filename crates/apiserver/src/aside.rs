//! Something that is looked at only when it has something to say.
//!
//! A task that waits for several things looks at all of them whenever one moves. A watch waits for events, and also for its clock,
//! the end of the server and a word from its client: those are rare, and each lies in memory of its own. An event wakes a thousand
//! watches at once, and what they look at in vain is cold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

#[derive(Default)]
pub struct Aside {
    bell: Arc<Bell>,
    /// Who hears the bell.
    listener: Option<Waker>,
}

struct Bell {
    rang: AtomicBool,
    /// Stays when it is woken: a ring that comes late may wake in vain, but takes nothing away.
    listener: Mutex<Option<Waker>>,
}

impl Default for Bell {
    /// What was never looked at may have something to say.
    fn default() -> Self {
        Bell { rang: AtomicBool::new(true), listener: Mutex::default() }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rang.store(true, Ordering::Release);
        let listener = self.listener.lock().clone();
        if let Some(listener) = listener {
            listener.wake();
        }
    }
}

impl Aside {
    /// Polls the first time, and whenever what was polled asked for it since.
    pub fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if !self.listener.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.listener = Some(cx.waker().clone());
            *self.bell.listener.lock() = Some(cx.waker().clone());
        }
        // Only after the listener is known: who rings before wakes nobody, and is seen here.
        if !self.bell.rang.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.bell.rang.store(false, Ordering::Release);
        poll(&mut Context::from_waker(&Waker::from(self.bell.clone())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_is_polled_when_it_rang_and_only_then() {
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let wakers = [Waker::from(first.clone()), Waker::from(second.clone())];
        let woken = |count: &Count| count.0.load(Ordering::Relaxed);
        let (mut aside, mut inner, mut polls) = (Aside::default(), None::<Waker>, 0);
        let mut look = |aside: &mut Aside, waker: &Waker| {
            let _: Poll<()> = aside.poll(&mut Context::from_waker(waker), |cx| {
                inner = Some(cx.waker().clone());
                polls += 1;
                Poll::Pending
            });
            (polls, inner.clone().expect("polled once"))
        };
        let (polls, bell) = look(&mut aside, &wakers[0]);
        assert_eq!(polls, 1, "the first time");
        assert_eq!(look(&mut aside, &wakers[0]).0, 1, "it did not ring");
        bell.wake_by_ref();
        assert_eq!(woken(&first), 1);
        assert_eq!(look(&mut aside, &wakers[0]).0, 2, "it rang");
        bell.wake_by_ref();
        assert_eq!(woken(&first), 2, "it is heard again and again");
        assert_eq!(look(&mut aside, &wakers[1]).0, 3);
        bell.wake_by_ref();
        assert_eq!((woken(&first), woken(&second)), (2, 1), "another task hears it now");
        assert_eq!(look(&mut aside, &wakers[1]).0, 4);
    }
}
