//! One run, from its seed to its result.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use application::{Limit, ListPets, ports::Position};
use harness::{Chance, all_pets, pet_named};
use tokio::{runtime, task::JoinSet, time};

use super::{
    checks,
    client::Client,
    engine::Engine,
    history::History,
    journal::{Journal, Tally},
    node::Node,
    plan::{End, Lie, Plan},
    truth::Truth,
    world::World,
};

/// How long after the last fault every node must be well: longer than the slowest call takes to end.
const RECOVERY_MAX: Duration = Duration::from_secs(15);
/// How long after the last create every node must show it: two polls.
const NEWS_MAX: Duration = Duration::from_secs(2);

/// What came of a run.
pub(crate) struct Report {
    pub(crate) tally: Tally,
    /// The same for every run of the seed.
    pub(crate) hash: u64,
    pub(crate) lines: Vec<String>,
    pub(crate) verdict: Result<(), String>,
}

/// Lives through everything that the seed holds, on a clock that takes no time.
pub(crate) fn run(seed: u64) -> Report {
    run_on(seed, None)
}

/// The same on an engine that lies.
pub(crate) fn run_on(seed: u64, lie: Option<Lie>) -> Report {
    // One thread and a clock that stands still from the very start: the order of events depends on nothing else.
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O always starts").block_on(async {
        let mut chance = Chance::new(seed);
        let plan = Plan { lie, ..Plan::of(&mut chance) };
        let journal = Arc::new(Journal::new());
        journal.note(format_args!("{plan:?}"));
        let verdict = live(&plan, chance, &journal).await;
        Report { tally: journal.tally(), hash: journal.hash(), lines: journal.lines(), verdict }
    })
}

async fn live(plan: &Plan, mut chance: Chance, journal: &Arc<Journal>) -> Result<(), String> {
    let engine = Engine::new(plan, chance.fork(), journal.clone());
    let nodes: Vec<_> =
        (0..plan.nodes).map(|index| Node::new(index, engine.clone(), plan, chance.fork())).collect();
    for node in &nodes {
        node.start().await?;
    }
    let world =
        World { journal: journal.clone(), history: History::default(), nodes, pets: AtomicU64::new(0) };
    let world = Arc::new(world);
    let watchers = watch(&world, &mut chance);
    let trouble = trouble(plan, &engine, &world);
    let clients = serve(plan, &world, &mut chance);
    clients.join_all().await;
    let ends: Result<(), String> = trouble.join_all().await.into_iter().collect();
    ends?;
    engine.heal();
    drop(watchers);
    time::sleep(RECOVERY_MAX).await;
    let doubted = engine.doubted_and_stored() as u64;
    journal.add("unclear, and stored", doubted);
    journal.note(format_args!("{doubted} doubts were stored"));
    let served = serves_again(&world).await;
    let truth = Truth::of(engine.stored())?;
    checks::check(plan, &truth, &world.history.take())?;
    served?;
    nodes_are_equal(&world, &truth)?;
    for node in &world.nodes {
        node.end(End::Closed).await?;
    }
    Ok(())
}

/// Starts the readers that poll the nodes.
fn watch(world: &Arc<World>, chance: &mut Chance) -> JoinSet<()> {
    let mut watchers = JoinSet::new();
    for node in world.nodes.clone() {
        let (world, mut chance) = (world.clone(), chance.fork());
        watchers.spawn(async move {
            let limit = Limit::new(1).expect("within the bounds");
            loop {
                time::sleep(chance.millis(1..=1_000)).await;
                world.list(&node, ListPets { limit, ..Default::default() });
            }
        });
    }
    watchers
}

fn serve(plan: &Plan, world: &Arc<World>, chance: &mut Chance) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for number in 0..plan.clients {
        let client = Client {
            world: world.clone(),
            name: format!("client-{number}"),
            chance: chance.fork(),
            think_max: plan.think_max,
            keyed: vec![],
        };
        clients.spawn(client.live(plan.requests_per_client));
    }
    clients
}

/// Starts the outages and restarts, each at its time.
fn trouble(plan: &Plan, engine: &Arc<Engine>, world: &Arc<World>) -> JoinSet<Result<(), String>> {
    let mut trouble = JoinSet::new();
    for outage in plan.outages.clone() {
        let engine = engine.clone();
        trouble.spawn(async move {
            time::sleep(outage.at).await;
            engine.go_away(&outage);
            Ok(())
        });
    }
    if let Some(unfit) = plan.unfit.clone() {
        let (engine, world) = (engine.clone(), world.clone());
        trouble.spawn(async move {
            time::sleep(unfit.at).await;
            // A node that has never seen a commit believes whatever it finds.
            let began = |node: &Arc<Node>| {
                node.life().is_some_and(|life| life.store.version().position > Position::START)
            };
            if world.nodes.iter().all(began) {
                engine.spoil(unfit.how);
                time::sleep(unfit.lasts).await;
                engine.unspoil();
            }
            Ok(())
        });
    }
    for restart in plan.restarts.clone() {
        let node = world.nodes[restart.node].clone();
        trouble.spawn(async move {
            time::sleep(restart.at).await;
            node.restart(restart.end, restart.down).await
        });
    }
    trouble
}

/// Whether every node is well now that the faults are over, and adds a pet.
async fn serves_again(world: &World) -> Result<(), String> {
    for node in &world.nodes {
        let life = node.life().ok_or_else(|| format!("node {} is down", node.index))?;
        if let Some(trouble) = life.store.health().not_ready() {
            return Err(format!("node {} is still not well: {trouble:?}", node.index));
        }
        let request = pet_named(&format!("last of node {}", node.index));
        let created = world.create(node, request, None).await;
        created.ok_or_else(|| format!("node {} adds no pets any more", node.index))?;
    }
    time::sleep(NEWS_MAX).await;
    Ok(())
}

/// Whether every node holds exactly what the log holds.
fn nodes_are_equal(world: &World, truth: &Truth) -> Result<(), String> {
    for node in &world.nodes {
        let life = node.life().ok_or_else(|| format!("node {} is down", node.index))?;
        let version = life.store.version();
        let expected = truth.at(version)?;
        let held = all_pets(&life.store).map_err(|fault| format!("node {} rejects: {fault}", node.index))?;
        if version.position != truth.head() || held != expected || life.store.count() != expected.len() {
            return Err(format!("node {} ends with {version:?} of {}", node.index, truth.head()));
        }
    }
    Ok(())
}
