// A client of Kafka's protocol in Go (franz-go): what a group reads is written to another topic in
// transactions, with the group's offsets; then what is committed is read. Prints what it has read.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error, what string) {
	if err != nil {
		fmt.Fprintln(os.Stderr, what+":", err)
		os.Exit(1)
	}
}

func main() {
	broker, from, to := os.Args[1], os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err, "count")
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	produce(ctx, broker, from, count)
	copyAll(ctx, broker, from, to, count)
	read(ctx, broker, to, count)
}

func produce(ctx context.Context, broker, topic string, count int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.AllowAutoTopicCreation(),
		kgo.ProducerBatchCompression(kgo.SnappyCompression()))
	check(err, "producer")
	defer client.Close()
	for number := 0; number < count; number++ {
		record := &kgo.Record{Topic: topic, Key: []byte("key"), Value: []byte(strconv.Itoa(number))}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) { check(err, "produce") })
	}
	check(client.Flush(ctx), "flush")
}

func copyAll(ctx context.Context, broker, from, to string, count int) {
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(broker), kgo.AllowAutoTopicCreation(),
		kgo.TransactionalID("go-"+to), kgo.ConsumerGroup("go-"+to), kgo.ConsumeTopics(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(4096))
	check(err, "session")
	defer session.Close()
	for done, round := 0, 0; done < count; round++ {
		fetches := session.PollRecords(ctx, 100)
		check(fetches.Err(), "poll")
		check(session.Begin(), "begin")
		fetches.EachRecord(func(record *kgo.Record) {
			copied := &kgo.Record{Topic: to, Key: record.Key, Value: record.Value}
			session.Produce(ctx, copied, func(_ *kgo.Record, err error) {
				if !errors.Is(err, kgo.ErrAborting) { // what is aborted need not be sent first
					check(err, "copy")
				}
			})
		})
		wanted := kgo.TryCommit
		if round%3 == 1 { // what is aborted is read again
			wanted = kgo.TryAbort
		}
		committed, err := session.End(ctx, wanted)
		check(err, "end")
		if committed {
			done += fetches.NumRecords()
		}
	}
}

func read(ctx context.Context, broker, topic string, count int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	check(err, "reader")
	defer client.Close()
	for seen := 0; seen < count; {
		fetches := client.PollFetches(ctx)
		check(fetches.Err(), "read")
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(string(record.Value))
			seen++
		})
	}
}
