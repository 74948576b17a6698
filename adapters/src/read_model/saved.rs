//! Pets in a snapshot.

use std::sync::Arc;

use domain::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};

/// The blocks that these chunks are saved as.
pub(super) fn blocks(chunks: Vec<Arc<Vec<Pet>>>) -> Box<dyn Iterator<Item = Vec<u8>> + Send> {
    Box::new(chunks.into_iter().map(|chunk| {
        let mut block = Vec::with_capacity(40 * chunk.len());
        for Pet { id, details: NewPet { name, category_id, status } } in &*chunk {
            let status = status.map_or(0, |status| 1 + super::index(status));
            let status = u8::try_from(status).expect("there are few statuses");
            let name = name.as_str();
            let len = u16::try_from(name.len()).expect("a name has at most 200 characters");
            block.extend(id.get().to_le_bytes());
            block.extend(category_id.0.to_le_bytes());
            block.push(status);
            block.extend(len.to_le_bytes());
            block.extend(name.as_bytes());
        }
        block
    }))
}

/// Reads a block. `None` if it is none.
pub(super) fn read(mut block: &[u8], mut add: impl FnMut(Pet)) -> Option<()> {
    while !block.is_empty() {
        let (id, rest) = block.split_first_chunk()?;
        let (category, rest) = rest.split_first_chunk()?;
        let (status, rest) = rest.split_first()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        let status = match usize::from(*status) {
            0 => None,
            number => Some(*PetStatus::ALL.get(number - 1)?),
        };
        let name = PetName::new(str::from_utf8(name).ok()?).ok()?;
        let details = NewPet { name, category_id: CategoryId(i64::from_le_bytes(*category)), status };
        add(Pet { id: PetId::new(i64::from_le_bytes(*id)).ok()?, details });
        block = rest;
    }
    Some(())
}
