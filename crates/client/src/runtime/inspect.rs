//! Examines the directories for records without changing them. [`RecordDirectories::running`] removes old records; this does not.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::runtime::{GatewayRecord, OTHERS, RecordDirectories, user};

pub struct RuntimeReport {
    /// The directories, each with the reason if records cannot be written there. The first usable one is used.
    pub directories: Vec<(PathBuf, Result<(), DirectoryProblem>)>,
    pub running: Vec<GatewayRecord>,
    /// The records of gateways that were killed.
    pub leftovers: Vec<PathBuf>,
}

/// The reason why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryProblem {
    #[error("not a directory")]
    NoDirectory,
    #[error("the directory belongs to another user")]
    Foreign,
    #[error("other users can read or change it (mode {0:03o})")]
    Open(u32),
    #[error("{0}")]
    Refused(io::Error),
}

impl RecordDirectories {
    pub fn inspect(&self) -> RuntimeReport {
        let directories = self.0.iter().map(|directory| (directory.clone(), check(directory))).collect();
        let (running, leftovers) = self.records();
        RuntimeReport { directories, running, leftovers }
    }
}

fn check(directory: &Path) -> Result<(), DirectoryProblem> {
    use std::os::unix::fs::MetadataExt;
    let may_write = |path: &Path| access(path, Access::WRITE_OK | Access::EXEC_OK);
    let allowed = match std::fs::symlink_metadata(directory) {
        Ok(found) if !found.is_dir() => return Err(DirectoryProblem::NoDirectory),
        Ok(found) if found.uid() != user() => return Err(DirectoryProblem::Foreign),
        Ok(found) if found.mode() & OTHERS != 0 => return Err(DirectoryProblem::Open(found.mode() & 0o777)),
        Ok(_) => may_write(directory),
        // The directory is created when a record is written.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = directory.ancestors().skip(1).find(|above| above.exists());
            above.map_or(Ok(()), may_write)
        }
        Err(error) => return Err(DirectoryProblem::Refused(error)),
    };
    allowed.map_err(|error| DirectoryProblem::Refused(error.into()))
}
