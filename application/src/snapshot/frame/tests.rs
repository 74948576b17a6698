//! Every byte of a frame counts.

use super::*;

const BLOCKS: [(Kind, &[u8]); 4] =
    [(Kind::Head, b"head"), (Kind::Recent, b"recent"), (Kind::Pets, b""), (Kind::End, b"")];

fn written(blocks: &[(Kind, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut frame = FrameWriter::begin(&mut bytes).unwrap();
    for (kind, content) in blocks {
        frame.block(*kind, content).unwrap();
    }
    bytes
}

fn begin(bytes: &[u8]) -> Result<FrameReader, Unusable> {
    FrameReader::begin(Box::new(io::Cursor::new(bytes.to_vec())))
}

/// Reads the blocks of [`BLOCKS`].
fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Unusable> {
    let mut frame = begin(bytes)?;
    BLOCKS.iter().map(|(kind, _)| frame.next(*kind)).collect()
}

fn refusal<T>(outcome: Result<T, Unusable>) -> String {
    outcome.err().expect("it should be refused").to_string()
}

#[test]
fn the_form_of_a_snapshot_never_changes() {
    let expected = b"petstore snapshot 1\nH\x04\0\0\0head\x42\x81\x4e\xc1E\0\0\0\0\x77\xf7\x12\x5b";
    assert_eq!(written(&[(Kind::Head, b"head"), (Kind::End, b"")]), expected);
}

#[test]
fn blocks_are_read_as_they_were_written() {
    assert_eq!(read(&written(&BLOCKS)).unwrap(), BLOCKS.map(|(_, content)| content.to_vec()));
}

#[test]
fn a_block_that_was_read_too_early_is_not_lost() {
    let mut frame = begin(&written(&BLOCKS)).unwrap();
    assert_eq!(frame.next_if(Kind::Recent).unwrap(), None);
    assert_eq!(refusal(frame.next(Kind::Keys)), "its Keys block is missing");
    assert_eq!(frame.next_if(Kind::Head).unwrap(), Some(b"head".to_vec()));
    assert_eq!(frame.next(Kind::Recent).unwrap(), b"recent");
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed() {
    let sound = written(&BLOCKS);
    for place in 0..sound.len() {
        let mut changed = sound.clone();
        changed[place] ^= 1;
        assert!(read(&changed).is_err(), "byte {place}");
        assert_eq!(refusal(read(&sound[..place])), "it is incomplete", "cut at {place}");
    }
}

#[test]
fn blocks_cannot_change_places() {
    let one = written(&[(Kind::Pets, b"one"), (Kind::Pets, b"two")]);
    let block = 5 + 3 + 4;
    let (rest, two) = one.split_at(one.len() - block);
    let (title, one) = rest.split_at(rest.len() - block);
    let mut frame = begin(&[title, two, one].concat()).unwrap();
    assert_eq!(refusal(frame.next(Kind::Pets)), "its checksum does not match its content");
}

#[test]
fn another_version_is_told_from_what_is_no_snapshot() {
    for version in [0, 2, u32::MAX] {
        let outcome = begin(format!("petstore snapshot {version}\n").as_bytes());
        assert!(matches!(outcome, Err(Unusable::OtherFormat(found)) if found == version), "{version}");
    }
    for title in ["petstore snapshot 4294967296\n", "petstore snapshot \n", "petstore 1\n", "\n"] {
        assert_eq!(refusal(begin(title.as_bytes())), "it does not begin like a snapshot", "{title:?}");
    }
    let endless = io::repeat(b'x').take(60);
    assert_eq!(refusal(FrameReader::begin(Box::new(endless))), "it does not begin like a snapshot");
}

#[test]
fn a_block_has_four_mebibytes_at_most() {
    let largest = vec![7; 4_194_304];
    let bytes = written(&[(Kind::Pets, &largest)]);
    assert!(begin(&bytes).unwrap().next(Kind::Pets).unwrap() == largest);
    let mut bytes = Vec::new();
    let mut frame = FrameWriter::begin(&mut bytes).unwrap();
    assert!(frame.block(Kind::Pets, &[&largest[..], b"x"].concat()).is_err());
    // One that says more is refused before anything of it is read.
    bytes.extend(b"P\x01\0\x40\0");
    assert_eq!(refusal(begin(&bytes).unwrap().next(Kind::Pets)), "a block does not begin like one");
}

#[test]
fn a_file_that_cannot_be_read_is_not_called_damaged() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("no disk"))
        }
    }
    assert_eq!(refusal(FrameReader::begin(Box::new(Broken))), "it cannot be read: no disk");
}
