//! What each acknowledgement of a pool of several devices waits for (decisions 0060 and 0065).
//!
//! Each member notes what it was asked for and when that was waited for, all in one list. What is
//! acknowledged is at the end of the list: each member of those that the labels call online must
//! have been asked, and have answered, by then.

use std::sync::{Arc, Mutex};

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::heartbeat::HEARTBEAT_OFFSET;
use format::members::Layout;
use runtime::clock::ManualClock;
use storage::device::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice,
    PendingRequest, SharedDevice, Ticket,
};
use storage::volume::VolumeDevices;

use super::Request;

const MEMBERS: usize = 3;
const MEMBER_BYTES: u64 = 16 << 20;
/// More than the log takes in line.
const MUCH: usize = 1 << 20;

/// What a member was asked for, or has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Asked(usize, Request),
    Answered(usize, Request),
}

/// What all members note, in order.
type Events = Arc<Mutex<Vec<Event>>>;

#[derive(Debug)]
struct Member {
    number: usize,
    inner: SharedDevice,
    info: DeviceInfo,
    events: Events,
}

/// A request whose answer is noted when somebody waits for it.
struct Noted(Ticket, Events, Event);

impl PendingRequest for Noted {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let Noted(ticket, events, event) = *self;
        let answer = ticket.wait();
        events.lock().expect("no test panics with it").push(event);
        answer
    }
}

impl Device for Member {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        let request = match operation {
            // The heartbeat orders nothing, and nothing waits for it.
            DeviceOperation::Write { offset: HEARTBEAT_OFFSET, .. } => None,
            DeviceOperation::Write { .. } => Some(Request::Write(purpose)),
            DeviceOperation::WriteThrough { .. } => Some(Request::WriteThrough(purpose)),
            DeviceOperation::Flush => Some(Request::Flush),
            DeviceOperation::Read { .. } | DeviceOperation::Discard { .. } => None,
        };
        let Some(request) = request else { return self.inner.submit(purpose, operation) };
        let asked = Event::Asked(self.number, request);
        self.events.lock().expect("no test panics with it").push(asked);
        let ticket = self.inner.submit(purpose, operation);
        let answered = Event::Answered(self.number, request);
        Ticket::new(Box::new(Noted(ticket, Arc::clone(&self.events), answered)))
    }
}

/// What one member was asked for, and how many of that it had answered, in order.
fn of_member(events: &[Event], number: usize) -> (Vec<Request>, usize) {
    let asked = events.iter().filter_map(|event| match event {
        Event::Asked(member, request) if *member == number => Some(*request),
        Event::Asked(..) | Event::Answered(..) => None,
    });
    let is_answer = |event: &&Event| matches!(event, Event::Answered(it, _) if *it == number);
    (asked.collect(), events.iter().filter(is_answer).count())
}

struct Ground {
    name: String,
    devices: Vec<SharedDevice>,
    events: Events,
    /// Members that the labels call online.
    online: Vec<usize>,
    pool: Pool,
}

impl Ground {
    /// Returns one of each layout on each sort of device, whole and without its second member.
    fn all() -> Vec<Ground> {
        let mut all = Vec::new();
        for layout in [Layout::Mirror, Layout::Raid5 { unit_shift: 13 }] {
            for has_write_through in [true, false] {
                for online in [vec![0, 1, 2], vec![0, 2]] {
                    all.push(Ground::new(layout, has_write_through, online));
                }
            }
        }
        all
    }

    fn new(layout: Layout, has_write_through: bool, online: Vec<usize>) -> Ground {
        let events = Events::default();
        let member = |number: usize| -> SharedDevice {
            let inner: SharedDevice = MemoryDevice::new(&format!("/d{number}"), MEMBER_BYTES);
            let info = DeviceInfo { has_write_through, ..inner.info().clone() };
            Arc::new(Member { number, inner, info, events: Arc::clone(&events) })
        };
        let devices: Vec<SharedDevice> = (0..MEMBERS).map(member).collect();
        let mut options = PoolCreateOptions::new(MEMBER_BYTES, [7; 64]);
        options.geometry.journal_bytes = Some(1 << 20);
        Pool::create_on(&devices, layout, &ManualClock::new(), &options).expect("a pool fits");
        take(&events);
        let pool = open(&devices, &online);
        let name = format!("{} of {online:?}, through: {has_write_through}", layout.word());
        Ground { name, devices, events, online, pool }
    }

    fn make(&self, name: &str) -> Ino {
        let new = NewInode::new(FileKind::Regular, 0o755);
        let root = self.pool.root();
        let made = self.pool.create(&Caller::root(), root, name.as_bytes(), new, None);
        made.expect("there is room").ino
    }

    /// Returns what the members noted until `acknowledged` returned.
    fn until(&self, acknowledged: impl FnOnce(&Pool)) -> Vec<Event> {
        take(&self.events);
        acknowledged(&self.pool);
        take(&self.events)
    }

    /// Each member that is online, and no other, was asked, has answered all, and ends as `is_end`
    /// says.
    #[track_caller]
    fn assert_each(&self, what: &str, events: &[Event], is_end: fn(&[Request]) -> bool) {
        let context = format!("{what}, {}", self.name);
        for number in 0..MEMBERS {
            let (asked, answered) = of_member(events, number);
            if self.online.contains(&number) {
                assert!(is_end(&asked), "{context}: member {number} was asked {asked:?}");
                assert_eq!(asked.len(), answered, "{context}: member {number} is not waited for");
            } else {
                assert_eq!(asked, [], "{context}: member {number} is out");
            }
        }
    }

    /// What was asked for before the first of `second` is durable on every member before that.
    #[track_caller]
    fn assert_durable_before(&self, what: &str, events: &[Event], second: &[Request]) {
        let context = format!("{what}, {}", self.name);
        let is_second =
            |event: &Event| matches!(event, Event::Asked(_, request) if second.contains(request));
        let at = events.iter().position(is_second).expect(&context);
        let before = &events[..at];
        for number in self.online.iter().copied() {
            let (asked, answered) = of_member(before, number);
            assert_eq!(asked.len(), answered, "{context}: member {number} is not waited for");
            let through = |it: &Request| matches!(it, Request::WriteThrough(_));
            let is_durable = asked.last() == Some(&Request::Flush) || asked.iter().all(through);
            assert!(is_durable, "{context}: member {number} was asked {asked:?}");
        }
        assert!(before.iter().any(|event| matches!(event, Event::Answered(..))), "{context}");
    }
}

fn take(events: &Events) -> Vec<Event> {
    std::mem::take(&mut *events.lock().expect("no test panics with it"))
}

fn open(devices: &[SharedDevice], which: &[usize]) -> Pool {
    let devices = which.iter().map(|&at| Arc::clone(&devices[at])).collect();
    let opening = VolumeDevices { devices, accepts_missing: false };
    let options = PoolOpenOptions::default();
    Pool::open_members(opening, Arc::new(ManualClock::new()), options).expect("enough are there")
}

const LOGS: [Request; 2] = [super::LOG, super::LOG_THROUGH];

fn ends_with_a_flush(asked: &[Request]) -> bool {
    asked.last() == Some(&Request::Flush)
}

fn ends_with_a_label(asked: &[Request]) -> bool {
    ends_with_a_flush(asked) && asked.contains(&Request::Write(IoPurpose::Superblock))
}

/// A commit, by whichever way it is asked for: its log chunk is durable on every member.
#[test]
fn a_commit_waits_for_the_log_of_every_member() {
    for ground in Ground::all() {
        let (caller, root) = (Caller::root(), ground.pool.root());
        let ino = ground.make("a");
        let events = ground.until(|pool| pool.fsync(&caller, ino, false).expect("all take it"));
        ground.assert_each("fsync", &events, super::ends_with_a_durable_log);

        ground.make("b");
        let events = ground.until(|pool| pool.fsync(&caller, root, false).expect("all take it"));
        ground.assert_each("fsync of a directory", &events, super::ends_with_a_durable_log);

        ground.make("c");
        let events = ground.until(|pool| pool.sync().expect("all take it"));
        ground.assert_each("sync", &events, super::ends_with_a_durable_log);

        // What NFS does for a creation.
        let ino = ground.make("d");
        let acknowledged = Arc::new(Mutex::new(None));
        let (to, noted) = (Arc::clone(&acknowledged), Arc::clone(&ground.events));
        take(&ground.events);
        let completion = Box::new(move |answer: engine::api::FsResult<()>| {
            answer.expect("all take it");
            *to.lock().expect("nothing panics with it") = Some(take(&noted));
        });
        ground.pool.commit_then(&caller, ino, false, completion);
        let events = acknowledged.lock().expect("nothing panics with it").take();
        let events = events.expect("nobody else keeps it");
        ground.assert_each("commit_then", &events, super::ends_with_a_durable_log);
    }
}

/// Data that a commit points to is durable on every member before the log of any is written.
#[test]
fn data_is_durable_on_every_member_before_the_log_of_any() {
    for ground in Ground::all() {
        let ino = ground.make("a");
        ground.pool.write(&Caller::root(), ino, 0, &vec![1; MUCH]).expect("there is room");
        // Segments are sealed as they are full: what was asked for then counts too.
        let events = {
            let mut early = take(&ground.events);
            let sync = |pool: &Pool| pool.fsync(&Caller::root(), ino, false).expect("all take it");
            early.extend(ground.until(sync));
            let last_log =
                |event: &Event| matches!(event, Event::Asked(_, it) if LOGS.contains(it));
            let is_data =
                |event: &Event| matches!(event, Event::Asked(_, Request::Write(IoPurpose::Data)));
            let data = early.iter().position(is_data).expect("a segment was sealed");
            assert!(early[data..].iter().any(last_log), "{}", ground.name);
            early.split_off(data)
        };
        ground.assert_durable_before("data", &events, &LOGS);
        ground.assert_each("fsync", &events, super::ends_with_a_durable_log_of_data);
    }
}

/// A checkpoint: pages are home on every member before the head of any moves, and that is durable
/// on every member.
#[test]
fn a_checkpoint_waits_for_every_member_at_each_step() {
    for ground in Ground::all() {
        ground.pool.checkpoint().expect("all take it");
        ground.make("a");
        ground.pool.sync().expect("all take it");
        let events = ground.until(|pool| pool.checkpoint().expect("all take it"));
        ground.assert_each("a checkpoint", &events, ends_with_a_flush);
        let home = |event: &Event| matches!(event, Event::Asked(_, it) if *it == super::HOME);
        let home = events.iter().position(home).expect("pages went home");
        ground.assert_durable_before("the head", &events[home..], &[super::LOG]);
    }
}

/// A close, and a member that is left behind: the labels are durable on every member that remains.
#[test]
fn labels_are_durable_on_every_member_that_remains() {
    for mut ground in Ground::all() {
        if ground.online.len() == MEMBERS {
            let events =
                ground.until(|pool| pool.devices().fail_member(1).expect("two are enough"));
            ground.online = vec![0, 2];
            ground.assert_each("a member fails", &events, ends_with_a_label);
            let ino = ground.make("a");
            let sync = |pool: &Pool| pool.fsync(&Caller::root(), ino, false).expect("they take it");
            let events = ground.until(sync);
            ground.assert_each("fsync then", &events, super::ends_with_a_durable_log);
        }
        let events = ground.until(|pool| pool.close().expect("they take it"));
        ground.assert_each("a close", &events, ends_with_a_label);
    }
}

/// An open without a member: the labels without it are durable on all others before anything else
/// is written.
#[test]
fn an_open_without_a_member_writes_labels_first() {
    for mut ground in Ground::all() {
        if ground.online.len() < MEMBERS {
            continue;
        }
        let ino = ground.make("a");
        ground.pool.fsync(&Caller::root(), ino, false).expect("all take it");
        take(&ground.events);
        let again = open(&ground.devices, &[0, 2]);
        let events = take(&ground.events);
        ground.online = vec![0, 2];
        let is_other =
            |it: &Request| !matches!(it, Request::Flush | Request::Write(IoPurpose::Superblock));
        let asked = events.iter().filter_map(|event| match event {
            Event::Asked(_, it) if is_other(it) => Some(*it),
            Event::Asked(..) | Event::Answered(..) => None,
        });
        let others: Vec<Request> = asked.collect();
        ground.assert_durable_before("an open without a member", &events, &others);
        drop(again);
    }
}
