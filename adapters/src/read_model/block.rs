//! A chunk as bytes, for a snapshot: its columns one after another, every number little-endian. A block that is loaded is
//! checked, so that no file can make a reader panic.
//!
//! | bytes | what |
//! |---|---|
//! | 3 × 4 | the number of runs, of pets, and of bytes of records |
//! | 10 for each run | its slot, its id |
//! | 2 for each pet | where its record ends |
//! | 8 for each status and 64 pets | which pets have the status |
//! | the rest | the records |

use super::{
    by_status::ByStatus,
    chunk::{Chunk, Run, split_number},
};

/// The chunk as bytes.
pub(super) fn encode(chunk: &Chunk) -> Vec<u8> {
    let Chunk { runs, ends, records, by_status } = chunk;
    let mut bytes = Vec::with_capacity(12 + 10 * runs.len() + 3 * ends.len() + 24 + records.len());
    for count in [runs.len(), ends.len(), records.len()] {
        bytes.extend(u32::try_from(count).expect("a chunk is full before that").to_le_bytes());
    }
    for run in runs {
        bytes.extend(run.slot.to_le_bytes());
        bytes.extend(run.id.to_le_bytes());
    }
    bytes.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
    bytes.extend(by_status.words(ends.len()).flat_map(u64::to_le_bytes));
    bytes.extend(records.as_bytes());
    bytes
}

/// The chunk that these are the bytes of, if they are a sound one.
pub(super) fn decode(mut bytes: &[u8]) -> Option<Chunk> {
    let mut count = || usize::try_from(u32::from_le_bytes(take(&mut bytes)?)).ok();
    let [runs, pets, records] = [count()?, count()?, count()?];
    if !(1..=pets).contains(&runs) || pets > Chunk::PETS_MAX {
        return None;
    }
    let run = |bytes: &mut &[u8]| {
        Some(Run { slot: u16::from_le_bytes(take(bytes)?), id: i64::from_le_bytes(take(bytes)?) })
    };
    let runs: Vec<_> = (0..runs).map(|_| run(&mut bytes)).collect::<Option<_>>()?;
    let ends: Vec<_> = (0..pets).map(|_| take(&mut bytes).map(u16::from_le_bytes)).collect::<Option<_>>()?;
    let words: Vec<_> = (0..3 * pets.div_ceil(64))
        .map(|_| take(&mut bytes).map(u64::from_le_bytes))
        .collect::<Option<_>>()?;
    let by_status = ByStatus::from_words(pets, words.into_iter())?;
    let records = str::from_utf8(bytes).ok().filter(|text| text.len() == records)?.to_owned();
    let chunk = Chunk { runs, ends, records, by_status };
    (has_sound_runs(&chunk) && has_sound_records(&chunk)).then_some(chunk)
}

/// Whether every pet has an id, and each a greater one than the pet before.
fn has_sound_runs(chunk: &Chunk) -> bool {
    let next_id = |run: &Run, end: usize| {
        let pets = end.checked_sub(run.slot.into()).filter(|pets| *pets > 0)?;
        run.id.checked_add(i64::try_from(pets).ok()? - 1)
    };
    let ends = chunk.runs.iter().skip(1).map(|next| (usize::from(next.slot), next.id));
    let ends = ends.chain([(chunk.len(), i64::MAX)]);
    chunk.runs.first().is_some_and(|first| first.slot == 0 && first.id > 0)
        && chunk
            .runs
            .iter()
            .zip(ends)
            .all(|(run, (end, id))| next_id(run, end).is_some_and(|last| last < id || end == chunk.len()))
}

/// Whether every pet has a category and a name.
fn has_sound_records(chunk: &Chunk) -> bool {
    let mut begin = 0;
    chunk.ends.iter().all(|end| {
        let record = chunk.records.get(begin..usize::from(*end));
        begin = usize::from(*end);
        record.and_then(split_number).is_some_and(|(_, name)| !name.is_empty())
    }) && begin == chunk.records.len()
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use application::PetView;
    use domain::{CategoryId, PetId, PetStatus};
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn any_chunk()(
            pets in prop::collection::vec(
                (
                    prop_oneof![4 => Just(1_i64), 1 => 1_i64..5],
                    "\\PC{1,4}",
                    any::<i64>(),
                    prop::option::of(prop::sample::select(PetStatus::ALL.to_vec())),
                ),
                1..80,
            ),
        ) -> Chunk {
            let (mut chunk, mut id) = (Chunk::default(), 0);
            for (step, name, category, status) in &pets {
                id += step;
                let (id, category_id) = (PetId::new(id).unwrap(), CategoryId(*category));
                chunk.push(&PetView { id, name, category_id, status: *status });
            }
            chunk
        }
    }

    fn pets(chunk: &Chunk) -> Vec<PetView<'_>> {
        (0..chunk.len()).map(|slot| chunk.pet(slot)).collect()
    }

    /// A chunk with these runs, and a pet for each of these records.
    fn with_runs(runs: &[(u16, i64)], records: &[&str]) -> Chunk {
        let mut chunk = Chunk {
            runs: runs.iter().map(|(slot, id)| Run { slot: *slot, id: *id }).collect(),
            ..Chunk::default()
        };
        for record in records {
            chunk.records.push_str(record);
            chunk.ends.push(u16::try_from(chunk.records.len()).unwrap());
        }
        chunk
    }

    #[test]
    fn only_runs_of_ascending_ids_that_cover_every_slot_are_sound() {
        let last = i64::MAX;
        for (runs, sound) in [
            (&[(0, 1)][..], true),
            (&[(0, last - 2)], true),
            (&[(0, last - 1)], false),
            (&[(0, 0)], false),
            (&[(0, -5)], false),
            (&[(1, 1)], false),
            (&[], false),
            (&[(0, 1), (2, 3)], true),
            (&[(0, 1), (2, 2)], false),
            (&[(0, 1), (0, 3)], false),
            (&[(0, 1), (3, 9)], false),
            (&[(0, 1), (1, 5), (2, 6)], true),
            (&[(0, 1), (2, 5), (1, 9)], false),
        ] {
            let chunk = with_runs(runs, &["7Rex", "7Rex", "7Rex"]);
            assert_eq!(decode(&encode(&chunk)).is_some(), sound, "{runs:?}");
        }
    }

    #[test]
    fn only_records_with_a_name_are_sound_and_no_text_is_left_over() {
        for (records, sound) in [(["7Rex", "7R"], true), (["7Rex", "7"], false), (["", "7Rex"], false)] {
            assert_eq!(decode(&encode(&with_runs(&[(0, 1)], &records))).is_some(), sound, "{records:?}");
        }
        let mut longer = with_runs(&[(0, 1)], &["7Rex"]);
        longer.records.push('x');
        assert_eq!(decode(&encode(&longer)), None);
    }

    #[test]
    fn a_block_holds_as_many_pets_as_a_chunk_at_most() {
        for (pets, sound) in [(Chunk::PETS_MAX, true), (Chunk::PETS_MAX + 1, false)] {
            let chunk = with_runs(&[(0, 1)], &vec!["7R"; pets]);
            assert_eq!(decode(&encode(&chunk)).is_some(), sound, "{pets} pets");
        }
    }

    proptest! {
        #[test]
        fn a_saved_chunk_is_loaded_as_it_was(chunk in any_chunk()) {
            let loaded = decode(&encode(&chunk)).expect("a saved chunk is sound");
            prop_assert_eq!(pets(&loaded), pets(&chunk));
            for status in PetStatus::ALL.map(Some) {
                for from in 0..chunk.len() {
                    prop_assert_eq!(loaded.next(from, status), chunk.next(from, status));
                }
            }
        }

        #[test]
        fn changed_bytes_are_refused_or_can_be_read(
            chunk in any_chunk(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = encode(&chunk);
            for (place, byte) in changes {
                *place.get_mut(&mut bytes) = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Some(loaded) = decode(&bytes) {
                let pets = pets(&loaded);
                prop_assert!(pets.is_sorted_by(|earlier, later| earlier.id < later.id));
                for (slot, pet) in pets.iter().enumerate() {
                    prop_assert_eq!(loaded.slot_of(pet.id), Some(slot));
                }
            }
        }
    }
}
