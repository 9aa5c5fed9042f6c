//! Tests of the locks outside a scheduler; `sim/tests.rs` has those inside.

use std::sync::Arc;

use super::*;

#[test]
fn locks_exclude_and_share_as_their_names_say() {
    let mutex = Mutex::new(1);
    let guard = mutex.lock();
    assert!(mutex.try_lock().is_none());
    drop(guard);
    *mutex.try_lock().expect("nobody holds it") += 1;
    assert_eq!(mutex.into_inner(), 2);

    let lock = RwLock::new(1);
    let (first, second) = (lock.read(), lock.try_read());
    assert!(second.is_some());
    assert!(lock.try_write().is_none());
    drop((first, second));
    *lock.write() += 1;
    assert_eq!(*lock.read(), 2);
}

#[test]
fn condition_wakes_another_thread_and_times_out_alone() {
    let shared = Arc::new((Mutex::new(false), Condvar::new()));
    let mut guard = shared.0.lock();
    assert!(shared.1.wait_for(&mut guard, 1), "nobody notified");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *shared.0.lock() = true;
            shared.1.notify_all();
        });
        while !*guard {
            shared.1.wait(&mut guard);
        }
    });
    assert!(*guard);
}
