//! The clients of the simulation: they add pets, repeat requests that got no reply, disconnect while they
//! wait, use a key twice, and read. Everything they do is recorded.

use std::sync::{Arc, atomic::Ordering};

use application::{CreatePet, Limit, ListPets, OwnerId, RequestKey};
use domain::{PetId, test_values::varied};
use harness::Chance;
use tokio::{task::JoinSet, time};

use super::{node::Node, world::World};

pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) name: String,
    pub(crate) chance: Chance,
    pub(crate) think_max: u64,
    /// The requests with a key that it sent so far.
    pub(crate) keyed: Vec<CreatePet>,
}

impl Client {
    pub(crate) async fn live(mut self, requests: usize) {
        for _ in 0..requests {
            time::sleep(self.chance.millis(0..=self.think_max)).await;
            match self.chance.index(10) {
                0..=2 => self.add().await,
                3..=4 => self.add_safely().await,
                5 => self.add_many().await,
                6 => self.use_a_key_again().await,
                _ => self.look(),
            }
        }
    }

    /// One pet, and a look at whether it is there.
    async fn add(&mut self) {
        let request = self.request(None);
        let node = self.node();
        let gives_up = self.chance.per_mille(100).then(|| self.chance.millis(0..=1_000));
        self.peek(&node);
        if let Some(created) = self.world.create(&node, request, gives_up).await {
            self.world.get(&node, created.pet.id);
        }
    }

    /// One pet under a key, sent until there is a response, or for a limited number of times.
    async fn add_safely(&mut self) {
        let key = format!("key-{}", self.keyed.len());
        let request = self.request(Some(&key));
        self.keyed.push(request.clone());
        for _ in 0..4 {
            let node = self.node();
            let gives_up = self.chance.per_mille(300).then(|| self.chance.millis(0..=1_000));
            if self.world.create(&node, request.clone(), gives_up).await.is_some()
                && self.chance.per_mille(700)
            {
                return;
            }
            time::sleep(self.chance.millis(0..=1_500)).await;
        }
    }

    /// Several pets at once, at one node: they share commits.
    async fn add_many(&mut self) {
        let node = self.node();
        let mut sends = JoinSet::new();
        let key = self.chance.per_mille(300).then(|| format!("many-{}", self.keyed.len()));
        let first = self.request(key.as_deref());
        for _ in 0..self.chance.within(2..=6) {
            let request = if key.is_some() { first.clone() } else { self.request(None) };
            let (world, node) = (self.world.clone(), node.clone());
            sends.spawn(async move { world.create(&node, request, None).await });
        }
        sends.join_all().await;
    }

    /// An old request again, or its key with another pet.
    async fn use_a_key_again(&mut self) {
        if self.keyed.is_empty() {
            return;
        }
        let mut request = self.keyed[self.chance.index(self.keyed.len())].clone();
        if self.chance.per_mille(300) {
            request.pet = self.request(None).pet;
        }
        let node = self.node();
        self.world.create(&node, request, None).await;
    }

    fn look(&mut self) {
        let node = self.node();
        let highest = self.world.pets.load(Ordering::SeqCst) + 2;
        let id = PetId::new(i64::try_from(self.chance.within(1..=highest)).expect("tests are small"));
        let id = id.expect("from 1 on");
        if self.chance.per_mille(500) {
            return self.world.get(&node, id);
        }
        let limit = Limit::new(1 + self.chance.index(Limit::MAX)).expect("within the bounds");
        let filter = self.chance.pick(&ListPets::every_filter());
        let query = ListPets { limit, after: self.chance.per_mille(300).then_some(id), ..filter };
        self.world.list(&node, query);
    }

    /// A look while a request is on its way.
    fn peek(&mut self, node: &Arc<Node>) {
        let (world, node, soon) = (self.world.clone(), node.clone(), self.chance.millis(0..=10));
        let query = ListPets::default();
        tokio::spawn(async move {
            time::sleep(soon).await;
            world.list(&node, query);
        });
    }

    fn node(&mut self) -> Arc<Node> {
        self.world.nodes[self.chance.index(self.world.nodes.len())].clone()
    }

    /// A pet with a unique name.
    fn request(&mut self, key: Option<&str>) -> CreatePet {
        let number = self.world.pets.fetch_add(1, Ordering::SeqCst) + 1;
        CreatePet {
            pet: varied(format!("pet {number}"), self.chance.within(0..=u64::from(u32::MAX))),
            by: OwnerId(self.name.as_str().into()),
            request_key: key.map(|key| RequestKey::new(key).expect("a plain key")),
        }
    }
}
