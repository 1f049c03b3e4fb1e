//! The administrator's HTTP API, by requests of the test's own making.
//!
//! Never: links the server's types; what it sends is what the documentation says.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent as Http;

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The API, as one user.
pub struct Api {
    http: Http,
    base: String,
    authorization: Option<String>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, `null` where it is not JSON.
    pub body: Value,
}

impl Answer {
    /// The body of an answer with this status.
    ///
    /// # Panics
    /// When the status is another.
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }
}

impl Api {
    /// Nobody: no credentials are sent.
    pub fn anonymous(to: SocketAddr) -> Self {
        let http = Http::config_builder()
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false)
            .build()
            .new_agent();
        Self {
            http,
            base: format!("http://{to}"),
            authorization: None,
        }
    }

    /// Logs in.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn login(to: SocketAddr, user: &str, password: &str) -> Self {
        let mut api = Self::anonymous(to);
        let answer = api.post(
            "/login",
            json!({ "user": user, "password": password, "token": true }),
        );
        assert_eq!(answer.status, 200, "login of {user}: {answer:?}");
        let token = answer.body["token"]
            .as_str()
            .expect("a login gives a token");
        api.authorization = Some(format!("Bearer {token}"));
        api
    }

    /// Creates a user without roles or groups.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn create_user(&self, name: &str, password: &str) {
        let user = json!({ "name": name, "password": password, "roles": [], "groups": [] });
        self.post("/users", user).expect(201);
    }

    /// Adds an allow rule for one user and gives its name.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn allow(&self, user: &str, actions: &[&str], resource: Value) -> String {
        self.rule("allow", 0, user, actions, resource)
    }

    /// Adds a rule for one user and gives its name.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn rule(
        &self,
        effect: &str,
        priority: i64,
        user: &str,
        actions: &[&str],
        resource: Value,
    ) -> String {
        let rule = json!({
            "comment": "set by a test",
            "effect": effect,
            "priority": priority,
            "subjects": [{ "kind": "user", "value": user }],
            "actions": actions,
            "resource": resource,
        });
        let answer = self.post("/rules", rule).expect(201);
        let id = answer["id"].as_str();
        id.unwrap_or_else(|| panic!("a rule has a name: {answer}"))
            .to_owned()
    }

    /// Deletes a rule.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn delete_rule(&self, id: &str) {
        self.delete(&format!("/rules/{id}")).expect(204);
    }

    /// One queue, stream or session of the vhost `/`.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn stream(&self, name: &str) -> Value {
        self.get(&format!("/streams/%2F/{name}")).expect(200)
    }

    /// Whether the node says that it is ready, and why it is not.
    pub fn readyz(&self) -> Answer {
        answer(self.http.get(format!("{}/readyz", self.base)).call())
    }

    /// GET below `/api/v1`.
    pub fn get(&self, path: &str) -> Answer {
        let mut request = self.http.get(self.url(path));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        answer(request.call())
    }

    /// DELETE below `/api/v1`.
    pub fn delete(&self, path: &str) -> Answer {
        let mut request = self.http.delete(self.url(path));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        answer(request.call())
    }

    /// POST of JSON below `/api/v1`.
    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.http.post(self.url(path)), body)
    }

    /// PUT of JSON below `/api/v1`.
    pub fn put(&self, path: &str, body: Value) -> Answer {
        self.send(self.http.put(self.url(path)), body)
    }

    fn send(
        &self,
        request: ureq::RequestBuilder<ureq::typestate::WithBody>,
        body: Value,
    ) -> Answer {
        let request = match &self.authorization {
            Some(authorization) => request.header("Authorization", authorization),
            None => request,
        };
        answer(request.send_json(body))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.base)
    }
}

fn answer(result: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = result.expect("the API answers");
    let status = response.status().as_u16();
    Answer {
        status,
        body: response.body_mut().read_json().unwrap_or(Value::Null),
    }
}
