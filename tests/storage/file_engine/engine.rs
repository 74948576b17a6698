//! An embedded engine in one plain file. This is all that an embedded engine has to implement:
//! [`EmbeddedLog`](adapters::event_log::embedded::EmbeddedLog) provides the thread and its queue, reopening after an error,
//! the high-water mark, the reserve of free space, and the checks after a failed sync.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Mutex,
};

use adapters::event_log::embedded::{Engine, Layout, Records, Visit, io_error, missing, sync_files};
use application::ports::{CommitId, LogError, Position, Record, StoredRecord, Version};
use uuid::Uuid;

/// A file of frames: length, commit id, record. A real engine would add a checksum to find damaged frames; of a record
/// the codec has one.
pub(crate) struct FileEngine {
    file: File,
    /// Every whole frame, by position.
    index: Mutex<Vec<Frame>>,
}

#[derive(Clone, Copy)]
struct Frame {
    commit: CommitId,
    /// Where its record starts, and how long it is.
    start: u64,
    len: u32,
}

const HEADER_LEN: usize = 4 + 16;

impl Frame {
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

impl Engine for FileEngine {
    const NAME: &'static str = "file";

    fn layout(path: &Path) -> Layout {
        Layout::next_to_file(path)
    }

    fn exists(layout: &Layout) -> Result<bool, LogError> {
        Ok(layout.path.exists())
    }

    fn files(layout: &Layout) -> io::Result<Vec<PathBuf>> {
        Ok(Some(layout.path.clone()).filter(|path| path.exists()).into_iter().collect())
    }

    fn record_files(layout: &Layout) -> Vec<PathBuf> {
        vec![layout.path.clone()]
    }

    /// A last frame that is cut off was never acknowledged, and is left out.
    fn open(layout: &Layout, _: Version) -> Result<Self, LogError> {
        let open = || {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(&layout.path)?;
            let (len, mut index) = (file.metadata()?.len(), Vec::new());
            let mut at = 0;
            while at + HEADER_LEN as u64 <= len {
                let mut header = [0; HEADER_LEN];
                file.read_exact_at(&mut header, at)?;
                let (record_len, id) = header.split_first_chunk().expect("a header begins with a length");
                let commit = CommitId(Uuid::from_slice(id).expect("the rest of a header is an id"));
                let frame =
                    Frame { commit, start: at + HEADER_LEN as u64, len: u32::from_be_bytes(*record_len) };
                at = frame.end();
                if at <= len {
                    index.push(frame);
                }
            }
            Ok(Self { file, index: Mutex::new(index) })
        };
        open().map_err(io_error("opening the log"))
    }

    fn prepare(&self, layout: &Layout) -> Result<(), LogError> {
        let cut = self.file.set_len(self.end());
        cut.and_then(|()| sync_files(&layout.directory, &Self::files(layout)?))
            .map_err(io_error("syncing the log"))
    }

    fn append(&self, _: Position, records: &[Record]) -> Result<(), LogError> {
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        for record in records {
            let len = u32::try_from(record.bytes.len()).expect("records are limited to far less than 4 GiB");
            bytes.extend([&len.to_be_bytes()[..], record.id.0.as_bytes()].concat());
            frames.push(Frame { commit: record.id, start: self.end() + bytes.len() as u64, len });
            bytes.extend_from_slice(&record.bytes);
        }
        let stored = self.file.write_all_at(&bytes, self.end()).and_then(|()| self.file.sync_data());
        stored.map_err(io_error("writing to the log"))?;
        self.index.lock().expect("nothing panics while it is locked").extend(frames);
        Ok(())
    }

    fn durability_settings(&self) -> Vec<(&'static str, String)> {
        vec![("sync", "fdatasync before every acknowledgement".to_owned())]
    }
}

impl Records for FileEngine {
    fn last(&self) -> Result<Version, LogError> {
        let index = self.index.lock().expect("nothing panics while it is locked");
        let last = index.last().map(|frame| Version::at(Position(index.len() as u64), frame.commit));
        Ok(last.unwrap_or(Version::START))
    }

    fn visit(&self, after: Position, last: Position, visit: &mut Visit<'_>) -> Result<(), LogError> {
        for position in (after.0 + 1..=last.0).map(Position) {
            let Some(frame) = self.frame(position) else { return Err(missing(position)) };
            let mut bytes = vec![0; frame.len as usize];
            self.file.read_exact_at(&mut bytes, frame.start).map_err(io_error("reading the log"))?;
            if visit(StoredRecord { position, id: Some(frame.commit), bytes: bytes.into() }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl FileEngine {
    fn frame(&self, position: Position) -> Option<Frame> {
        let before = usize::try_from(position.0.checked_sub(1)?).ok()?;
        self.index.lock().expect("nothing panics while it is locked").get(before).copied()
    }

    /// Where the next frame goes.
    fn end(&self) -> u64 {
        self.index.lock().expect("nothing panics while it is locked").last().map_or(0, Frame::end)
    }
}
