//! Stops a command that root runs on the files of another user. That user could redirect root with links, and could not
//! open the files that root creates.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use application::ports::{Fault, LogError};
use rustix::process::geteuid;

/// Rejects a path for root, if the file, its directory or a link in the path belongs to another user.
pub(crate) fn check_owner(path: &Path) -> Result<(), LogError> {
    // Without a slash at its end, which would resolve a link.
    let path = path.components().as_path();
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let files = [path, directory.unwrap_or(Path::new("."))].map(Path::metadata).into_iter().flatten();
    let links = path.ancestors().flat_map(Path::symlink_metadata).filter(Metadata::is_symlink);
    match links.chain(files).map(|about| about.uid()).find(|owner| *owner != 0) {
        Some(owner) if geteuid().is_root() => {
            let user = user_name(owner).unwrap_or_else(|| format!("'#{owner}'"));
            Err(Fault::CannotOpen.error(format!(
                "root does not work on files of another user, such as {}: run this command as their owner, with \
                 `sudo -u {user} petstore …`",
                path.display()
            )))
        }
        Some(_) | None => Ok(()),
    }
}

/// The name of a local user. `sudo` takes the number of any other.
fn user_name(id: u32) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [name, _, number, ..] if number == id.to_string() => Some(name.to_owned()),
        _ => None,
    })
}
