//! Load generator against any MQTT or AMQP broker, and micro-benchmarks.
fn main() {}
