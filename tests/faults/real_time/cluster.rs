//! The nodes and the servers of a run, and their faults: kills and freezes, of one or two at a time.

use std::{fmt, fs, sync::Arc, thread, time::Duration};

use harness::{App, Chance, Gateway, NatsCluster, PostgresServer};

use super::clients::Nodes;

/// The servers that keep the log.
pub(crate) enum Servers {
    /// The log is in the files of the node.
    None,
    Postgres(PostgresServer),
    Nats(NatsCluster),
    ObjectStore(Gateway),
}

/// Nodes on one log.
pub(crate) struct Cluster {
    pub(crate) apps: Vec<App>,
    pub(crate) nodes: Arc<Nodes>,
    servers: Servers,
    /// Every fault, with its time.
    pub(crate) faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Node(usize),
    Server(usize),
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Freeze,
}

impl Cluster {
    /// Starts the nodes. The first one makes the keys of all.
    pub(crate) fn start(mut apps: Vec<App>, servers: Servers) -> Self {
        let (first, others) = apps.split_first_mut().expect("there is a node");
        for app in others {
            fs::copy(first.keys_file(), app.keys_file()).unwrap();
            app.key.clone_from(&first.key);
        }
        let nodes = Arc::new(Nodes::new(apps.len(), &apps[0].key));
        for (node, app) in apps.iter_mut().enumerate() {
            app.start_again();
            nodes.set_address(node, Some(app.address()));
        }
        Self { apps, nodes, servers, faults: vec![] }
    }

    /// Lets one or two nodes or servers fail, and ends their faults after a moment.
    pub(crate) fn disturb(&mut self, dice: &mut Chance) {
        let servers = match &self.servers {
            Servers::None => 0,
            Servers::Postgres(_) | Servers::ObjectStore(_) => 1,
            Servers::Nats(cluster) => cluster.servers.len(),
        };
        let targets: Vec<_> =
            (0..servers).map(Target::Server).chain((0..self.apps.len()).map(Target::Node)).collect();
        let count = if dice.per_mille(300) { 2 } else { 1 };
        let mut chosen: Vec<_> =
            (0..count).map(|_| (dice.pick(&targets), dice.pick(&[Fault::Kill, Fault::Freeze]))).collect();
        chosen.dedup_by_key(|(target, _)| *target);
        for (target, fault) in &chosen {
            self.note(format_args!("{fault:?} {target:?}"));
            self.begin(*target, *fault);
            thread::sleep(dice.moment(Duration::from_millis(100)));
        }
        thread::sleep(dice.millis(50..=1_500));
        // A node can start only when its servers run.
        chosen.sort_by_key(|(target, _)| matches!(target, Target::Node(_)));
        for (target, fault) in chosen {
            self.end(target, fault);
            self.note(format_args!("end of {fault:?} {target:?}"));
        }
    }

    fn begin(&mut self, target: Target, fault: Fault) {
        match (target, fault) {
            (Target::Node(node), Fault::Kill) => {
                self.nodes.set_address(node, None);
                self.apps[node].kill();
            }
            (Target::Node(node), Fault::Freeze) => self.apps[node].signal("STOP"),
            (Target::Server(server), fault) => match (&mut self.servers, fault) {
                (Servers::None, _) => unreachable!("there is no server"),
                (Servers::Postgres(postgres), Fault::Kill) => postgres.kill(),
                (Servers::Postgres(postgres), Fault::Freeze) => postgres.freeze(),
                (Servers::Nats(cluster), Fault::Kill) => cluster.servers[server].kill(),
                (Servers::Nats(cluster), Fault::Freeze) => cluster.servers[server].freeze(),
                (Servers::ObjectStore(gateway), Fault::Kill) => gateway.kill(),
                (Servers::ObjectStore(gateway), Fault::Freeze) => gateway.freeze(),
            },
        }
    }

    fn end(&mut self, target: Target, fault: Fault) {
        match (target, fault) {
            (Target::Node(node), Fault::Kill) => {
                let app = &mut self.apps[node];
                app.begin();
                if let Err(ended) = app.wait_until_listening() {
                    panic!("node {node} ended with {:?}: {}", ended.code, ended.stderr);
                }
                // Clients may call it before it is ready.
                self.nodes.set_address(node, Some(app.address()));
            }
            (Target::Node(node), Fault::Freeze) => self.apps[node].signal("CONT"),
            (Target::Server(server), fault) => match (&mut self.servers, fault) {
                (Servers::None, _) => unreachable!("there is no server"),
                (Servers::Postgres(postgres), Fault::Kill) => postgres.start_again(),
                (Servers::Postgres(postgres), Fault::Freeze) => postgres.thaw(),
                (Servers::Nats(cluster), Fault::Kill) => cluster.servers[server].start_again(),
                (Servers::Nats(cluster), Fault::Freeze) => cluster.servers[server].thaw(),
                (Servers::ObjectStore(gateway), Fault::Kill) => gateway.start_again(),
                (Servers::ObjectStore(gateway), Fault::Freeze) => gateway.thaw(),
            },
        }
    }

    fn note(&mut self, event: fmt::Arguments<'_>) {
        self.faults.push(format!("{:?} {event}", self.nodes.now()));
    }
}
