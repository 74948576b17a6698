//! Files that are lost while a log is open.

use std::fs;

use super::*;

pub(crate) async fn a_log_whose_files_are_gone_is_closed_permanently<E: Engine>() {
    lose::<E>("the directory is deleted", |layout| fs::remove_dir_all(&layout.directory).unwrap()).await;
    lose::<E>("the mark is deleted", |layout| fs::remove_file(&layout.mark).unwrap()).await;
    let moved =
        |layout: &Layout| fs::rename(&layout.directory, layout.directory.with_extension("old")).unwrap();
    lose::<E>("the directory is moved", moved).await;
    for index in 0..E::record_files(&E::layout(Path::new("any"))).len() {
        let file = |layout: &Layout| E::record_files(layout).swap_remove(index);
        lose::<E>("a file is deleted", |layout| fs::remove_file(file(layout)).unwrap()).await;
        let replaced = |layout: &Layout| {
            let copy = layout.directory.join("copy");
            fs::copy(file(layout), &copy).and_then(|_| fs::rename(&copy, file(layout))).unwrap();
        };
        lose::<E>("a file is replaced by its copy", replaced).await;
    }
}

async fn lose<E: Engine>(what: &str, lose: impl Fn(&Layout)) {
    let directory = TempDir::new().unwrap();
    let path = store::<E>(&directory);
    let log = EmbeddedLog::<E>::open(&path).unwrap();
    let head = append_up_to(&log, 3).await;
    lose(&E::layout(&path));
    let rejected = log.append(head, &[record(4)]).await;
    let Err(AppendError::Closed(error)) = rejected else { panic!("{what}: {rejected:?}") };
    assert_eq!(error.fault, Fault::FilesMissing, "{what}: {error}");
    assert_eq!(log.head().await, Err(error.clone()), "{what}: a closed log says why");
    assert_eq!(log.append(head, &[record(4)]).await, Err(AppendError::Closed(error)), "{what}, again");
}
