// A Go client of Kafka's protocol, for the peer test. Fetched on demand, never part of the build.
module magnetar/interop/kafka

go 1.24.0

require github.com/twmb/franz-go v1.18.0
