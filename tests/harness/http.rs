//! A small HTTP client that shows responses unchanged: status, headers and body. It follows no redirects and
//! retries nothing.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use domain::NewPet;
use serde_json::{Value, json};

/// No response takes longer, not even one that waits for a timeout of the service.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A pet, as a client sends it.
pub const REX: &str = r#"{"name":"Rex","categoryId":7}"#;

/// A pet as a client sends it. A response also has its id.
pub fn json_of(NewPet { name, category_id, status }: &NewPet) -> Value {
    let mut pet = json!({ "name": name.as_str(), "categoryId": category_id.0 });
    if let Some(status) = status {
        pet["status"] = status.as_str().into();
    }
    pet
}

/// The head of a request that adds a pet, on a connection that stays open.
pub fn create_head(key: &str, length: usize) -> String {
    format!(
        "POST /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

/// A request in the making.
#[derive(Debug, Clone)]
pub struct Call {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// A response as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The bytes of the body.
    pub body: Vec<u8>,
}

impl Call {
    /// Starts a request.
    pub fn new(address: SocketAddr, method: &str, path: &str) -> Self {
        Self { address, method: method.into(), path: path.into(), headers: vec![], body: vec![] }
    }

    /// The same request for another path.
    #[must_use]
    pub fn to(&self, path: &str) -> Self {
        Self { path: path.into(), ..self.clone() }
    }

    /// Adds a header; the same name may be added twice.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds an API key.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        self.header("Authorization", &format!("Bearer {key}"))
    }

    /// Gives a body and says that it is JSON.
    #[must_use]
    pub fn json(self, body: impl Into<Vec<u8>>) -> Self {
        self.header("Content-Type", "application/json").body(body)
    }

    /// Gives a body and says nothing about it.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request and reads the response.
    pub fn send(&self) -> Response {
        self.try_send().unwrap_or_else(|| panic!("{} {} gets a response", self.method, self.path))
    }

    /// Sends the request; `None` if there is no response, or one that is not HTTP.
    pub fn try_send(&self) -> Option<Response> {
        let mut request = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.method, self.path, self.address
        )
        .into_bytes();
        let length = ("Content-Length".to_owned(), self.body.len().to_string());
        let needs_length = !self.body.is_empty() || self.method == "POST";
        for (name, value) in self.headers.iter().chain(needs_length.then_some(&length)) {
            request.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(&self.body);
        let head_only = self.method == "HEAD";
        // Not every server closes when it is asked to: a response that tells its length is over when that is there.
        let whole = |response: &[u8]| {
            let parsed = Response::parse(response, head_only);
            parsed.is_some_and(|response| response.header("content-length").is_some())
        };
        let response = exchange(self.address, &request, whole)?;
        Response::parse(&response, head_only)
    }
}

/// A connection that stays open, with one API key.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    key: String,
}

impl Connection {
    /// Connects to the service.
    pub fn open(address: SocketAddr, key: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the service accepts a connection");
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(TIMEOUT)))
            .expect("a socket has options");
        Self { stream, key: key.to_owned() }
    }

    /// Lists pets, which must not end the connection.
    pub fn list(&mut self) -> Response {
        self.try_list().expect("the connection stays open")
    }

    /// Lists pets; `None` if the connection ends.
    pub fn try_list(&mut self) -> Option<Response> {
        let list = format!("GET /v1/pets HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n\r\n", self.key);
        self.send(list.as_bytes())
    }

    /// Sends these bytes, and reads a response; `None` if the connection ends.
    pub fn send(&mut self, request: &[u8]) -> Option<Response> {
        self.stream.write_all(request).ok()?;
        let response = read(&mut self.stream, |bytes| Response::parse(bytes, false).is_some());
        Response::parse(&response, false)
    }
}

/// Sends these bytes as they are and returns everything that comes back until the service closes.
pub fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    exchange(address, bytes, |_| false).expect("the service accepts a connection")
}

/// Sends these bytes, and reads until the response is whole or the connection ends.
fn exchange(address: SocketAddr, bytes: &[u8], whole: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    // The service may respond and close before it has read the whole request.
    let _ = stream.write_all(bytes);
    Some(read(&mut stream, whole))
}

fn read(stream: &mut TcpStream, whole: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut response, mut part) = (Vec::new(), [0; 16 * 1024]);
    while !whole(&response) {
        match stream.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A reset ends the response like any other end; what came before it counts.
            Ok(0) | Err(_) => break,
            Ok(length) => response.extend_from_slice(&part[..length]),
        }
    }
    response
}

/// The ids of these pets.
pub fn ids(pets: &[Value]) -> Vec<i64> {
    pets.iter().map(|pet| pet["id"].as_i64().expect("ids are integers")).collect()
}

impl Response {
    /// Reads one response from what a connection brought.
    pub fn parse(bytes: &[u8], head_only: bool) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .map(|line| {
                line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            })
            .collect::<Option<Vec<_>>>()?;
        let mut response = Self { status, headers, body: vec![] };
        let rest = &bytes[end + 4..];
        if !head_only {
            response.body = match response.header("content-length") {
                Some(length) => rest.get(..length.parse().ok()?)?.to_vec(),
                None => rest.to_vec(),
            };
        }
        Some(response)
    }

    /// The value of a header that comes once.
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "the header {name} comes once");
        values.first().copied()
    }

    /// Every value of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(header, _)| header == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("the body is UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// The ids of the pets in a list.
    pub fn ids(&self) -> Vec<i64> {
        ids(self.json().as_array().expect("a list is an array"))
    }

    /// The page after this one, from the `Link` header.
    pub fn next(&self) -> Option<&str> {
        let link = self.all("link").into_iter().find(|link| link.contains("rel=\"next\""))?;
        link.strip_prefix('<')?.split_once('>').map(|(path, _)| path)
    }

    /// Asserts the Error shape with this code and status, and returns the message.
    pub fn error(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"));
        let error = self.json();
        assert_eq!(error["code"], code, "{error}");
        assert_eq!(error["status"], status, "{error}");
        assert_eq!(error.as_object().map(serde_json::Map::len), Some(3), "{error}");
        let message = error["message"].as_str().expect("the message is text");
        assert!(!message.is_empty());
        message.to_owned()
    }
}
