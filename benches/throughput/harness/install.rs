//! Finds or installs other projects' servers: programs on PATH, packages of apt, npm, pip and cargo. Installed ones are
//! kept beside the build products. All share one deadline, and report why something is missing.

use std::fs;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::measure::progress;
use super::server::target;

/// How to install packages.
#[derive(Clone, Copy, Debug)]
pub struct Installer {
    /// The deadline. Without one nothing is installed, and only what is present is used.
    pub until: Option<Instant>,
}

impl Installer {
    /// A program on PATH, or else from the apt package of the same name.
    pub fn system(&self, name: &str) -> Result<PathBuf, String> {
        let on_path = || {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|program| program.is_file())
        };
        if let Some(program) = on_path() {
            return Ok(program);
        }
        // SAFETY: the call has no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return Err(format!("not on PATH, and only root can install it (apt-get install {name})"));
        }
        let mut apt = Command::new("apt-get");
        apt.args(["install", "--yes", "--quiet", name]).env("DEBIAN_FRONTEND", "noninteractive");
        self.run(name, &mut apt)?;
        on_path().ok_or_else(|| format!("apt-get has not brought {name}"))
    }

    /// A program from a crate.
    pub fn cargo(&self, name: &str, version: &str) -> Result<PathBuf, String> {
        let place = place().join("cargo");
        let program = place.join("bin").join(name);
        if program.exists() {
            return Ok(program);
        }
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--quiet", "--locked", "--root"]).arg(&place).arg(format!("{name}@{version}"));
        // Builds are reused by the next run.
        cargo.env("CARGO_TARGET_DIR", place.join("build"));
        self.run(name, &mut cargo).map(|()| program)
    }

    /// A package in a virtual environment of its own, with a program of the same name.
    pub fn pip(&self, name: &str, version: &str) -> Result<PathBuf, String> {
        let place = place().join(format!("{name}-{version}"));
        let program = place.join("bin").join(name);
        // pip writes it last.
        if program.exists() {
            return Ok(program);
        }
        self.run(name, Command::new("python3").args(["-m", "venv"]).arg(&place))?;
        let mut pip = Command::new(place.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", &format!("{name}=={version}")]);
        self.run(name, &mut pip).map(|()| program)
    }

    /// The packages in `gateways/package.json`, and our own server there: the folder of both.
    pub fn npm(&self) -> Result<PathBuf, String> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/throughput/gateways");
        let packages = place().join("gateways");
        let copied = |name: &str| -> io::Result<bool> {
            let (from, to) = (fs::read(sources.join(name))?, packages.join(name));
            let is_new = fs::read(&to).ok().as_ref() != Some(&from);
            fs::write(to, from).map(|()| is_new)
        };
        let copy = || -> io::Result<bool> {
            fs::create_dir_all(&packages)?;
            copied("spawn-per-connection.mjs")?;
            Ok(copied("package.json")? | copied("package-lock.json")?)
        };
        let is_new = copy().map_err(|error| error.to_string())?;
        // npm writes this last.
        if !is_new && packages.join("node_modules/.package-lock.json").exists() {
            return Ok(packages);
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&packages);
        self.run("npm's", &mut npm).map(|()| packages)
    }

    /// Runs an installer, and kills it at the deadline.
    pub fn run(&self, name: &str, command: &mut Command) -> Result<(), String> {
        let Some(until) = self.until else { return Err("not there, and this run installs nothing".to_owned()) };
        progress(&format!("installing {name}"));
        let program = command.get_program().display().to_string();
        let failed = |error: io::Error| format!("{program}: {error}");
        let mut output = tempfile::tempfile().map_err(failed)?;
        let both = [output.try_clone(), output.try_clone()];
        let [stdout, stderr] = both.map(|file| file.map_or_else(|_| Stdio::null(), Stdio::from));
        let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().map_err(failed)?;
        let status = loop {
            match child.try_wait().map_err(failed)? {
                Some(status) => break status,
                None if Instant::now() >= until => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("the time for installing is over; another run continues".to_owned());
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        if status.success() {
            return Ok(());
        }
        let mut said = String::new();
        let _ = output.rewind().and_then(|()| output.read_to_string(&mut said));
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        Err(format!("{program}, {status}: {}", last.trim()))
    }
}

/// The directory of installed packages.
fn place() -> PathBuf {
    target().join("bench")
}
