//! A database that is restored or replaced while nodes use it.

use harness::{PostgresServer, all_pets, create};

use super::nodes::{eventually, node};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_writing_past_the_head_that_a_restore_removed() {
    let server = PostgresServer::start();
    let store = node(&server.url("postgres")).await;
    for count in 1..=6 {
        create(&store, &format!("before {count}")).await.unwrap();
    }
    server.sql("postgres", "DELETE FROM petstore_commits WHERE position > 3");
    eventually("the pets that are gone are no longer shown", async || {
        let shown = all_pets(&store).map_err(|fault| fault.to_string())?.len();
        if shown == 3 { Ok(()) } else { Err(format!("{shown} pets")) }
    })
    .await;
    eventually("writing goes on", || create(&store, "after 4")).await;
    for count in 5..=8 {
        create(&store, &format!("after {count}")).await.unwrap();
    }
    assert_eq!(
        all_pets(&store).unwrap(),
        all_pets(&*node(&server.url("postgres")).await).unwrap(),
        "that is what is stored"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_only_reads_notices_another_history_of_the_same_length() {
    let mut server = PostgresServer::start();
    let other = server.create_database();
    let store = node(&server.url("postgres")).await;
    create(&store, "first").await.unwrap();
    let elsewhere = node(&server.url(&other)).await;
    let row = |database: &str, position: u32| {
        let column = |what: &str| {
            let of_row = format!("SELECT {what} FROM petstore_commits WHERE position = {position}");
            server.sql(database, &of_row)
        };
        format!("'{}', decode('{}', 'hex')", column("id"), column("encode(bytes, 'hex')"))
    };
    let first = row("postgres", 1);
    server.sql(&other, &format!("INSERT INTO petstore_commits (position, id, bytes) VALUES (1, {first})"));
    eventually("the first commit is there too", || create(&elsewhere, "theirs")).await;
    create(&store, "ours").await.unwrap();
    let theirs = row(&other, 2);
    server
        .sql("postgres", &format!("UPDATE petstore_commits SET (id, bytes) = ({theirs}) WHERE position = 2"));
    eventually("the other history is shown", async || {
        let shown = all_pets(&store).map_err(|fault| fault.to_string())?;
        if shown == all_pets(&elsewhere).unwrap() { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}
