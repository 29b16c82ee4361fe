//! The stock Danube client in Rust, one call for each thing that a test wants of it. What happened goes to stdout, a
//! line each; an error ends it with its text on stderr.
//!
//!     send URL TOPIC PRODUCER PARTITIONS COUNT [KEY...]     messages "0", "1", …, with the keys in turn
//!     receive URL TOPIC SUBSCRIPTION KIND CONSUMER [NACK]   until stdin ends; with NACK, each one refused at first
//!     measure URL TOPIC SENDERS EACH BYTES                  the median of an answer in µs, and messages a second
//!     schema URL SUBJECT TOPIC DEFINITION PAYLOAD...        register, bind a producer to it, send
//!
//! DANUBE_CA, DANUBE_CERTIFICATE, DANUBE_KEY (files) and DANUBE_TOKEN are for a server with TLS and security.

use danube_client::{Consumer, DanubeClient, Producer, SchemaType, SubType};
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::time::{Duration, Instant};
use danube_core::message::StreamMessage;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc::Receiver;

const TRIES_MAX: usize = 300;
const PAUSE: Duration = Duration::from_millis(50);

type Outcome = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match rest[0] {
        "send" => send(&rest[1..]).await,
        "receive" => receive(&rest[1..]).await,
        "measure" => measure(&rest[1..]).await,
        "schema" => schema(&rest[1..]).await,
        other => Err(format!("no such call: {other}").into()),
    }
}

async fn client(url: &str) -> Result<DanubeClient, Box<dyn Error>> {
    let mut builder = DanubeClient::builder().service_url(url);
    match (given("DANUBE_CA"), given("DANUBE_CERTIFICATE"), given("DANUBE_KEY")) {
        (Some(ca), Some(certificate), Some(key)) => builder = builder.with_mtls(ca, certificate, key)?,
        (Some(ca), _, _) => builder = builder.with_tls(ca)?,
        _ => {}
    }
    if let Some(token) = given("DANUBE_TOKEN") {
        builder = builder.with_token(token);
    }
    Ok(builder.build().await?)
}

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

async fn send(given: &[&str]) -> Outcome {
    let (partitions, count): (usize, usize) = (given[3].parse()?, given[4].parse()?);
    let keys = &given[5..];
    let client = client(given[0]).await?;
    let mut builder = client.new_producer().with_topic(given[1]).with_name(given[2]).with_reliable_dispatch();
    if partitions > 0 {
        builder = builder.with_partitions(partitions);
    }
    let mut producer = builder.build()?;
    producer.create().await?;
    for number in 0..count {
        let mut tries = 0;
        // the client gives up when a connection breaks under a message: whoever uses it sends it again
        while let Err(error) = send_one(&producer, number, keys).await {
            tries += 1;
            if tries == TRIES_MAX {
                return Err(error.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
        println!("{number}");
    }
    Ok(())
}

async fn send_one(producer: &Producer, number: usize, keys: &[&str]) -> danube_client::errors::Result<u64> {
    let payload = number.to_string().into_bytes();
    let attributes = Some(HashMap::from([("number".to_string(), number.to_string())]));
    match keys {
        [] => producer.send(payload, attributes).await,
        _ => producer.send_with_key(payload, attributes, keys[number % keys.len()]).await,
    }
}

async fn receive(given: &[&str]) -> Outcome {
    let kind = match given[3] {
        "exclusive" => SubType::Exclusive,
        "shared" => SubType::Shared,
        "failover" => SubType::FailOver,
        "key_shared" => SubType::KeyShared,
        other => return Err(format!("no such kind: {other}").into()),
    };
    let refuses = given.len() > 5;
    let mut refused = HashSet::new();
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0u8; 1];
    let mut tries = 0;
    loop {
        let subscribed = subscribe(given, kind.clone()).await;
        let (mut consumer, mut messages) = match subscribed {
            Ok(found) => found,
            Err(error) if tries == TRIES_MAX => return Err(error),
            Err(_) => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        println!("subscribed");
        loop {
            let message = tokio::select! {
                found = messages.recv() => found,
                _ = stdin.read(&mut nothing) => {
                    consumer.close().await;
                    return Ok(());
                }
            };
            // the client gives up when a connection breaks at the wrong moment: whoever uses it subscribes again
            let Some(message) = message else { break };
            let place = (message.msg_id.topic_name.clone(), message.msg_id.topic_offset);
            if refuses && refused.insert(place.clone()) {
                consumer.nack(&message, Some(10), Some("not yet".to_string())).await?;
                println!("refused {}", place.1);
                continue;
            }
            let key = message.routing_key.clone().unwrap_or_default();
            let number = message.attributes.get("number").cloned().unwrap_or_default();
            println!("{} {} {} {} {}", place.0, place.1, key, number, String::from_utf8(message.payload.to_vec())?);
            if let Err(error) = consumer.ack(&message).await {
                eprintln!("not acknowledged: {error}"); // the client does not try again: the message will come again
            }
        }
    }
}

async fn subscribe(given: &[&str], kind: SubType) -> Result<(Consumer, Receiver<StreamMessage>), Box<dyn Error>> {
    let mut consumer = client(given[0])
        .await?
        .new_consumer()
        .with_topic(given[1])
        .with_subscription(given[2])
        .with_subscription_type(kind)
        .with_consumer_name(given[4])
        .build()?;
    consumer.subscribe().await?;
    let messages = consumer.receive().await?;
    Ok((consumer, messages))
}

/// Each sender has a producer of its own and waits for each answer.
async fn measure(given: &[&str]) -> Outcome {
    let (senders, each, bytes): (usize, usize, usize) = (given[2].parse()?, given[3].parse()?, given[4].parse()?);
    let client = client(given[0]).await?;
    let mut producers = Vec::new();
    for number in 0..senders {
        let name = format!("measured-{number}");
        let mut producer = client.new_producer().with_topic(given[1]).with_name(name).with_reliable_dispatch().build()?;
        producer.create().await?;
        producers.push(producer);
    }
    let started = Instant::now();
    let tasks: Vec<_> = producers
        .into_iter()
        .map(|producer| {
            tokio::spawn(async move {
                let mut taken = Vec::new();
                for _ in 0..each {
                    let begun = Instant::now();
                    producer.send(vec![7; bytes], None).await?;
                    taken.push(begun.elapsed().as_micros());
                }
                danube_client::errors::Result::Ok(taken)
            })
        })
        .collect();
    let mut taken = Vec::new();
    for task in tasks {
        taken.extend(task.await??);
    }
    let rate = taken.len() as f64 / started.elapsed().as_secs_f64();
    taken.sort();
    println!("{} {}", taken[taken.len() / 2], rate as u64);
    Ok(())
}

async fn schema(given: &[&str]) -> Outcome {
    let client = client(given[0]).await?;
    let id = client
        .schema()
        .register_schema(given[1])
        .with_type(SchemaType::JsonSchema)
        .with_schema_data(given[3].as_bytes())
        .execute()
        .await?;
    println!("registered {id}");
    let builder = client.new_producer().with_topic(given[2]).with_name("typed").with_reliable_dispatch();
    let mut producer = builder.with_schema_subject(given[1]).build()?;
    producer.create().await?;
    for payload in &given[4..] {
        match producer.send(payload.as_bytes().to_vec(), None).await {
            Ok(_) => println!("sent"),
            Err(error) => println!("not sent: {error}"),
        }
    }
    Ok(())
}
