// Pulsar's own Go client, for the peer test. Fetched on demand, never part of the build.
module magnetar/interop

go 1.24.0

require github.com/apache/pulsar-client-go v0.19.0
