//! The store against a model that is too simple to be wrong: random operations, restarts at random points.

use std::{fmt, sync::Arc};

use adapters::event_log::sled::SledLog;
use application::{CreatePet, KeyId, Limit, ListPets, LogAccess, PetStore, RequestKey, WriteError};
use domain::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};
use harness::{open_node, page, pet};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// What can be done to a store.
#[derive(Debug, Clone)]
enum Step {
    Create(NewPet, Option<RequestKey>),
    CreateMany(Vec<NewPet>),
    Get(i64),
    List { limit: usize, status: Option<PetStatus>, after: Option<i64> },
    Restart,
}

/// The model: a list of pets and who asked with which key.
#[derive(Debug, Clone, Default)]
struct Model {
    pets: Vec<Pet>,
    answered: Vec<(RequestKey, Pet)>,
}

impl Model {
    fn create(&mut self, details: NewPet) -> Pet {
        let id = PetId::new(i64::try_from(self.pets.len()).unwrap() + 1).unwrap();
        let pet = Pet { id, details };
        self.pets.push(pet.clone());
        pet
    }

    /// A key that was used before adds nothing, whatever pet it comes with.
    fn create_once(&mut self, details: NewPet, key: RequestKey) {
        if self.answered.iter().all(|(answered, _)| *answered != key) {
            let pet = self.create(details);
            self.answered.push((key, pet));
        }
    }

    fn list(&self, limit: usize, status: Option<PetStatus>, after: Option<i64>) -> Vec<Pet> {
        let wanted = |pet: &&Pet| {
            after.is_none_or(|after| pet.id.get() > after)
                && (status.is_none() || pet.details.status == status)
        };
        self.pets.iter().filter(wanted).take(limit).cloned().collect()
    }
}

fn any_pet() -> impl Strategy<Value = NewPet> {
    let status = prop::option::of(prop::sample::select(PetStatus::ALL.to_vec()));
    ("[a-c]{1,2}", 0..3_i64, status).prop_map(|(name, category, status)| NewPet {
        name: PetName::new(name).unwrap(),
        category_id: CategoryId(category),
        status,
    })
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Step> {
        let known = i64::try_from(state.pets.len()).unwrap() + 3;
        let key = prop::option::of("[k-n]").prop_map(|key| key.map(|key| RequestKey::new(key).unwrap()));
        let status = prop::option::of(prop::sample::select(PetStatus::ALL.to_vec()));
        prop_oneof![
            4 => (any_pet(), key).prop_map(|(pet, key)| Step::Create(pet, key)),
            1 => prop::collection::vec(any_pet(), 1..20).prop_map(Step::CreateMany),
            2 => (1..known).prop_map(Step::Get),
            3 => (1..=100_usize, status, prop::option::of(1..known))
                .prop_map(|(limit, status, after)| Step::List { limit, status, after }),
            1 => Just(Step::Restart),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        match step {
            Step::Create(pet, Some(key)) => state.create_once(pet.clone(), key.clone()),
            Step::Create(pet, None) => {
                state.create(pet.clone());
            }
            Step::CreateMany(pets) => pets.iter().for_each(|pet| {
                state.create(pet.clone());
            }),
            Step::Get(_) | Step::List { .. } | Step::Restart => {}
        }
        state
    }
}

/// The real store on a real disk.
struct Node {
    runtime: Runtime,
    folder: TempDir,
    store: Option<PetStore>,
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Node").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Node {
    fn open(&mut self) {
        let path = self.folder.path().join("log");
        self.store = Some(self.runtime.block_on(async {
            let log = Arc::new(SledLog::open(&path).expect("the log opens"));
            open_node(log, LogAccess::Exclusive).await
        }));
    }

    fn close(&mut self) {
        if let Some(store) = self.store.take() {
            self.runtime.block_on(store.close());
        }
    }

    fn store(&self) -> &PetStore {
        self.store.as_ref().expect("the store is open between steps")
    }
}

fn request(pet: &NewPet, key: Option<&RequestKey>) -> CreatePet {
    CreatePet { pet: pet.clone(), by: KeyId("k".into()), request_key: key.cloned() }
}

struct StoreTest;

impl StateMachineTest for StoreTest {
    type SystemUnderTest = Node;
    type Reference = Model;

    fn init_test(_: &Model) -> Node {
        let runtime = Runtime::new().expect("a runtime");
        let mut node = Node { runtime, folder: tempfile::tempdir().expect("a folder"), store: None };
        node.open();
        node
    }

    fn apply(mut node: Node, after: &Model, step: Step) -> Node {
        match step {
            Step::Create(pet, key) => {
                let created = node.runtime.block_on(node.store().create(request(&pet, key.as_ref())));
                let answered = |key: &RequestKey| after.answered.iter().find(|(known, _)| known == key);
                let expected = match &key {
                    Some(key) => &answered(key).expect("the model remembers every key").1,
                    None => after.pets.last().expect("the model has just added a pet"),
                };
                match created {
                    Ok(created) => assert_eq!(created.pet, *expected),
                    Err(error) => {
                        assert_eq!((error, expected.details == pet), (WriteError::RequestKeyReused, false));
                    }
                }
            }
            Step::CreateMany(pets) => {
                let store = node.store();
                node.runtime.block_on(async {
                    for pet in &pets {
                        store.create(request(pet, None)).await.expect("a sound store takes every pet");
                    }
                });
            }
            Step::Get(id) => {
                let found = pet(node.store(), PetId::new(id).unwrap()).unwrap();
                let expected = after.pets.iter().find(|pet| pet.id.get() == id).cloned();
                assert_eq!(found, expected);
            }
            Step::List { limit, status, after: from } => {
                let from_id = from.map(|id| PetId::new(id).unwrap());
                let all = ListPets { limit: Limit::new(limit).unwrap(), ..Default::default() };
                let query = ListPets { status, after: from_id, ..all };
                assert_eq!(page(node.store(), &query).unwrap().pets, after.list(limit, status, from));
            }
            Step::Restart => {
                node.close();
                node.open();
            }
        }
        node
    }

    fn check_invariants(node: &Node, model: &Model) {
        assert_eq!(node.store().count(), model.pets.len(), "no pet more, no pet less");
    }

    fn teardown(mut node: Node, _: Model) {
        node.close();
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_like_a_list_through_every_restart(sequential 1..30 => StoreTest);
}
