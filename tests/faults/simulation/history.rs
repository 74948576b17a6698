//! What clients did and what they saw, to be compared with the log when the run is over.

use application::{
    CreatePet, Created, ListPets, Page, Version, WriteError,
    log::commit::{Commit, Entry},
    ports::Fault,
};
use domain::{Pet, PetId};
use parking_lot::Mutex;

use super::journal::Tick;

#[derive(Default)]
pub(crate) struct History(Mutex<Operations>);

#[derive(Default)]
pub(crate) struct Operations {
    pub(crate) creates: Vec<Create>,
    pub(crate) reads: Vec<Read>,
}

/// A request to add a pet.
pub(crate) struct Create {
    pub(crate) node: usize,
    /// Which of the node's lives.
    pub(crate) life: usize,
    pub(crate) request: CreatePet,
    pub(crate) sent: Moment,
    pub(crate) ended: Moment,
    pub(crate) outcome: Outcome,
    /// Whether the node called its log damaged all the time.
    pub(crate) damaged: bool,
}

/// When something happened, on the logical and on the simulated clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) tick: Tick,
    pub(crate) millis: u64,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Acknowledged(Created),
    Rejected(WriteError),
    /// The node was killed, or the client disconnected before the response arrived.
    Lost,
}

/// Something that a node showed to a reader.
pub(crate) struct Read {
    pub(crate) node: usize,
    /// Which of the node's lives.
    pub(crate) life: usize,
    /// When that life began to read the log.
    pub(crate) begun: Tick,
    pub(crate) at: Tick,
    /// What the node said it was showing.
    pub(crate) version: Version,
    pub(crate) shown: Shown,
}

pub(crate) enum Shown {
    Page(ListPets, Page),
    Pet(PetId, Option<Pet>),
    Nothing(Fault),
}

impl History {
    pub(crate) fn created(&self, create: Create) {
        self.0.lock().creates.push(create);
    }

    pub(crate) fn read(&self, read: Read) {
        self.0.lock().reads.push(read);
    }

    /// Everything that was noted, now that the run is over.
    pub(crate) fn take(&self) -> Operations {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The pets that a commit added, with the requests that asked for them.
pub(crate) fn pets(commit: &Commit) -> impl Iterator<Item = (&Entry, &Pet)> {
    commit.entries.iter().filter_map(|entry| Some((entry, entry.event.added()?)))
}
