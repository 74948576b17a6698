//! A separate network: a namespace that a virtual cable connects to this machine, so that servers in it have
//! an address that is not loopback.

use std::{
    ffi::OsStr,
    net::Ipv4Addr,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// The addresses reserved for tests of network devices (RFC 2544): they are not routed.
const RANGE: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// How many networks of four addresses each the range holds.
const NETWORKS: u32 = 1 << 15;

/// A network with one machine in it. Removed when dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// The address of the machine in it.
    address: Ipv4Addr,
}

impl Network {
    /// Makes a network; tells why not if this machine does not allow it.
    pub fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = (process::id() * 16 + COUNT.fetch_add(1, Ordering::Relaxed)) % NETWORKS;
        let [near, far] = [1, 2].map(|host| Ipv4Addr::from(RANGE + number * 4 + host));
        let name = format!("pets{number}");
        let cable = format!("pets{number}");
        ip(&["netns", "add", &name])?;
        // From here on, dropping it removes the namespace and with it the cable.
        let network = Self { name: name.clone(), address: far };
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["address", "add", &format!("{near}/30"), "dev", &cable])?;
        ip(&["link", "set", &cable, "up"])?;
        ip(&["-n", &name, "address", "add", &format!("{far}/30"), "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(network)
    }

    /// The address of the machine in the network, as this machine reaches it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A command that runs in the network.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // At worst, an empty namespace is left.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let done =
        Command::new("ip").args(arguments).output().map_err(|error| format!("there is no ip: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}
