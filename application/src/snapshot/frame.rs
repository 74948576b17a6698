//! The frame of a snapshot: blocks with checksums that tell a whole file from a half or damaged one.

use std::io::{self, Read, Write};

use super::Unusable;

/// The first line names the format and its version.
const TITLE: &[u8] = b"petstore snapshot ";
/// The version of the format. A snapshot of any other version is not used: replaying the log costs less than a bug here.
pub(super) const VERSION: u32 = 1;
/// The most bytes of a block, so that a damaged length costs no memory.
pub(super) const BLOCK_MAX: usize = 4 * 1024 * 1024;

/// What a block holds, in the order in which blocks follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// What was saved, and when: one block.
    Head,
    /// The hashes of the last commits: one block.
    Recent,
    /// Remembered requests of one owner.
    Keys,
    /// Pets, in the form that the read model gives them.
    Pets,
    /// Nothing: the snapshot is complete.
    End,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Head, Self::Recent, Self::Keys, Self::Pets, Self::End];

    fn tag(self) -> u8 {
        match self {
            Self::Head => b'H',
            Self::Recent => b'R',
            Self::Keys => b'K',
            Self::Pets => b'P',
            Self::End => b'E',
        }
    }
}

/// Writes blocks.
pub(super) struct FrameWriter<'a> {
    to: &'a mut dyn Write,
    /// The checksum over everything so far, so that blocks cannot change places.
    checksum: u32,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn begin(to: &'a mut dyn Write) -> io::Result<Self> {
        let title = [TITLE, VERSION.to_string().as_bytes(), b"\n"].concat();
        to.write_all(&title)?;
        Ok(Self { to, checksum: crc32c::crc32c(&title) })
    }

    pub(super) fn block(&mut self, kind: Kind, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).ok().filter(|_| content.len() <= BLOCK_MAX);
        let size = size.ok_or_else(|| io::Error::other("a block of a snapshot is too large"))?;
        let [a, b, c, d] = size.to_le_bytes();
        let start = [kind.tag(), a, b, c, d];
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &start), content);
        self.to.write_all(&start)?;
        self.to.write_all(content)?;
        self.to.write_all(&self.checksum.to_le_bytes())
    }
}

/// Reads blocks.
pub(super) struct FrameReader {
    from: Box<dyn Read + Send>,
    checksum: u32,
    /// A block that was read too early.
    next: Option<(Kind, Vec<u8>)>,
}

impl FrameReader {
    pub(super) fn begin(mut from: Box<dyn Read + Send>) -> Result<Self, Unusable> {
        let mut title = Vec::new();
        while title.last() != Some(&b'\n') {
            let mut byte = [0];
            from.read_exact(&mut byte).map_err(unreadable)?;
            title.push(byte[0]);
            if title.len() > TITLE.len() + 11 {
                return Err(Unusable::Damaged("it does not begin like a snapshot".into()));
            }
        }
        let version =
            title.strip_prefix(TITLE).and_then(|rest| str::from_utf8(rest).ok()?.trim_end().parse().ok());
        match version {
            Some(VERSION) => Ok(Self { from, checksum: crc32c::crc32c(&title), next: None }),
            Some(version) => Err(Unusable::OtherFormat(version)),
            None => Err(Unusable::Damaged("it does not begin like a snapshot".into())),
        }
    }

    /// The next block, if it is of this kind.
    pub(super) fn next_if(&mut self, kind: Kind) -> Result<Option<Vec<u8>>, Unusable> {
        let (found, content) = match self.next.take() {
            Some(block) => block,
            None => self.read()?,
        };
        if found == kind {
            return Ok(Some(content));
        }
        self.next = Some((found, content));
        Ok(None)
    }

    /// The next block, which must be of this kind.
    pub(super) fn next(&mut self, kind: Kind) -> Result<Vec<u8>, Unusable> {
        self.next_if(kind)?.ok_or_else(|| Unusable::Damaged(format!("its {kind:?} block is missing")))
    }

    fn read(&mut self) -> Result<(Kind, Vec<u8>), Unusable> {
        let mut start = [0; 5];
        self.from.read_exact(&mut start).map_err(unreadable)?;
        let [tag, size @ ..] = start;
        let size = u32::from_le_bytes(size) as usize;
        let kind = Kind::ALL.into_iter().find(|kind| kind.tag() == tag).filter(|_| size <= BLOCK_MAX);
        let kind = kind.ok_or_else(|| Unusable::Damaged("a block does not begin like one".into()))?;
        let mut content = vec![0; size];
        self.from.read_exact(&mut content).map_err(unreadable)?;
        let mut checksum = [0; 4];
        self.from.read_exact(&mut checksum).map_err(unreadable)?;
        self.checksum = crc32c::crc32c_append(crc32c::crc32c_append(self.checksum, &start), &content);
        if u32::from_le_bytes(checksum) == self.checksum {
            Ok((kind, content))
        } else {
            Err(Unusable::Damaged("its checksum does not match its content".into()))
        }
    }
}

fn unreadable(error: io::Error) -> Unusable {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Unusable::Damaged("it is incomplete".into()),
        _ => Unusable::Unreadable(error),
    }
}

#[cfg(test)]
mod tests;
