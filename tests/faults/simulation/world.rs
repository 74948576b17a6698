//! What clients share: the nodes that they call, and the history that records everything they do.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use application::{CreatePet, Created, ListPets, Version, ports::Fault};
use domain::PetId;
use tokio::time;

use super::{
    history::{Create, History, Moment, Outcome, Read, Shown},
    journal::Journal,
    node::{Life, Node},
};

pub(crate) struct World {
    pub(crate) journal: Arc<Journal>,
    pub(crate) history: History,
    pub(crate) nodes: Vec<Arc<Node>>,
    /// How many different pets were asked for.
    pub(crate) pets: AtomicU64,
}

impl World {
    /// Sends a request, and notes what became of it. The client goes away after `gives_up`.
    pub(crate) async fn create(
        &self,
        node: &Node,
        request: CreatePet,
        gives_up: Option<Duration>,
    ) -> Option<Created> {
        let life = node.life()?;
        let damaged = || life.store.health().unusable().is_some_and(|error| error.fault == Fault::Damaged);
        let before = damaged();
        let sent = self.asked(node, &request);
        let outcome = outcome(&life, request.clone(), gives_up.unwrap_or(Duration::MAX)).await;
        let ended = self.ended(node, &request, &outcome);
        let created = match &outcome {
            Outcome::Acknowledged(created) => Some(created.clone()),
            Outcome::Rejected(_) | Outcome::Lost => None,
        };
        let (damaged, node, life) = (before && damaged(), node.index, life.number);
        self.history.created(Create { node, life, request, sent, ended, outcome, damaged });
        created
    }

    pub(crate) fn list(&self, node: &Node, query: ListPets) {
        let Some(life) = node.life() else { return };
        let version = life.store.version();
        let shown = match life.store.list(&query) {
            Ok(page) => Shown::Page(query, page),
            Err(fault) => Shown::Nothing(fault),
        };
        self.shown(node, &life, version, shown);
    }

    pub(crate) fn get(&self, node: &Node, id: PetId) {
        let Some(life) = node.life() else { return };
        let version = life.store.version();
        let shown = match life.store.get(id) {
            Ok((pet, _)) => Shown::Pet(id, pet),
            Err(fault) => Shown::Nothing(fault),
        };
        self.shown(node, &life, version, shown);
    }

    fn asked(&self, node: &Node, request: &CreatePet) -> Moment {
        let CreatePet { pet, request_key, .. } = request;
        let line = format_args!("node {} is asked for {:?} under {request_key:?}", node.index, pet.name);
        self.moment(self.journal.count("creates", line))
    }

    fn ended(&self, node: &Node, request: &CreatePet, outcome: &Outcome) -> Moment {
        let line = format_args!("node {} is done with {:?}: {outcome:?}", node.index, request.pet.name);
        let event = match outcome {
            Outcome::Acknowledged(created) if created.replayed => "replayed",
            Outcome::Acknowledged(_) => "acknowledged",
            Outcome::Rejected(_) => "rejected",
            Outcome::Lost => "lost",
        };
        self.moment(self.journal.count(event, line))
    }

    fn shown(&self, node: &Node, life: &Life, version: Version, shown: Shown) {
        let position = version.position;
        let at = self.journal.count("reads", format_args!("node {} shows {position}", node.index));
        let Life { number, begun, .. } = *life;
        self.history.read(Read { node: node.index, life: number, begun, at, version, shown });
    }

    fn moment(&self, tick: u64) -> Moment {
        Moment { tick, millis: self.journal.millis() }
    }
}

async fn outcome(life: &Life, request: CreatePet, timeout: Duration) -> Outcome {
    tokio::select! {
        biased;
        () = life.killed() => Outcome::Lost,
        response = time::timeout(timeout, life.store.create(request)) => match response {
            Ok(Ok(created)) => Outcome::Acknowledged(created),
            Ok(Err(error)) => Outcome::Rejected(error),
            Err(_) => Outcome::Lost,
        },
    }
}
