//! Clients as users write them: one that a generator makes from the document, and the examples in `docs/api.md` and
//! `docs/clients`.

use std::{env, fs, process::Command};

use harness::{App, CutProxy, REX, petstore, python_tool, root, succeed, tools};

#[test]
fn a_generated_client_adds_and_lists_pets() {
    let app = App::start();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("openapi.json"), petstore(["openapi"]).stdout).unwrap();
    let generator = &mut python_tool("openapi-python-client");
    generator.args("generate --path openapi.json --meta none --output-path pet_store_client".split(' '));
    let generated = succeed(generator.env("PATH", tools_first()).current_dir(directory.path()));
    assert!(!generated.contains("Warning") && !generated.contains("Error"), "{generated}");
    let client = &mut python_tool("python");
    client
        .arg(root().join("tests/api/clients/generated.py"))
        .arg(format!("http://{}", app.address()))
        .arg(&app.key);
    let printed = succeed(client.env("PYTHONPATH", directory.path()));
    println!("{printed}");
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        [
            "added 1 Rex",
            "added 2 Bella",
            "added 3 Zoë",
            "listed [(1, 'Rex', 'sold'), (2, 'Bella', 'sold'), (3, 'Zoë', 'sold')]",
            "rejected name must contain at least one character that is not white space",
        ]
    );
}

#[test]
fn the_curl_commands_in_the_api_page_work_when_pasted() {
    let app = App::start();
    let code = curl_commands();
    let printed = run_snippet(&app, &address(&app), &code, &mut Command::new("bash"));
    assert_eq!(printed.matches("HTTP/1.1 201 Created").count(), 3, "{printed}");
    assert_eq!(printed.matches("HTTP/1.1 200 OK").count(), 2, "{printed}");
    assert!(printed.to_lowercase().contains("idempotency-replayed: true"), "{printed}");
    assert!(printed.contains("HTTP/1.1 304 Not Modified"), "{printed}");
    assert_eq!(app.get("/v1/pets").ids(), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_and_javascript_clients_add_one_pet_even_if_the_response_is_lost() {
    for (file, command) in
        [("client.py", &mut python_tool("python")), ("client.mjs", &mut Command::new("node"))]
    {
        let app = App::start();
        for _ in 0..120 {
            app.post(REX);
        }
        let proxy = CutProxy::start(app.address()).await;
        proxy.lose_the_response_to("POST /v1/pets");
        let code = fs::read_to_string(root().join("docs/clients").join(file)).unwrap();
        let printed = run_snippet(&app, &proxy.address().to_string(), &code, command);
        assert_eq!(proxy.lost_responses(), 1, "{file}");
        let listed: Vec<_> =
            printed.lines().filter(|line| line.ends_with("Rex") || line.ends_with("Bella")).collect();
        assert_eq!(listed.len(), 121, "{file} walks along all pages and added one pet: {printed}");
        assert_eq!(listed.last(), Some(&"121 Bella"), "{file}: {printed}");
    }
}

/// Runs a block of the documentation as a user would who has just started the service.
fn run_snippet(app: &App, address: &str, code: &str, command: &mut Command) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("petstore-data")).unwrap();
    fs::write(directory.path().join("petstore-data/first-key"), format!("{}\n", app.key)).unwrap();
    // Node.js needs the extension, the others ignore it.
    let file = directory.path().join("snippet.mjs");
    fs::write(&file, code.replace("127.0.0.1:8080", address)).unwrap();
    succeed(command.arg(&file).current_dir(directory.path()))
}

/// The block with the examples.
fn curl_commands() -> String {
    let page = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let section = page.split_once("\n## Examples\n").expect("the section").1;
    let block = section.split_once("```sh\n").expect("a block").1;
    block.split_once("\n```").expect("the end of the block").0.to_owned()
}

fn address(app: &App) -> String {
    app.address().to_string()
}

/// The generator formats its output with a program from the same directory.
fn tools_first() -> String {
    let tools = tools().join("python/bin");
    format!("{}:{}", tools.display(), env::var("PATH").unwrap_or_default())
}
