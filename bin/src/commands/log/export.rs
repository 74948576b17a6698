//! `petstore log export`: writes a history to standard output.

use std::io::{self, BufWriter};

use anyhow::bail;
use application::transfer::{self, End};
use chrono::Utc;

use super::{progress, until};
use crate::{config::SourceArgument, output};

pub(super) async fn run(source: &SourceArgument, until: Option<End>) -> anyhow::Result<()> {
    let (log, cut) = until::open_source(&source.store, &source.access, until).await?;
    let tally = cut.tally();
    let bar = progress::through(&*log, &tally).await?;
    let out = BufWriter::new(io::stdout().lock());
    let exported: anyhow::Result<()> =
        transfer::export(&*log, out, tally, Utc::now(), |position| bar.set_position(position.0)).await;
    if let Err(error) = exported {
        match error.downcast::<io::Error>()? {
            error if error.kind() == io::ErrorKind::BrokenPipe => {
                bail!("the reader closed the pipe: the export is incomplete")
            }
            error => bail!(
                "cannot write to {}: {error}; the export is incomplete: delete it, and export again where there is room",
                output::destination()
            ),
        }
    }
    // Standard output has the export.
    if let Some(sentence) = until::describe(&cut) {
        output::print_error(format_args!("petstore: {sentence}"));
    }
    Ok(())
}
