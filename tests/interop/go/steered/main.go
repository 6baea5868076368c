// Consumes wherever it is sent, as applications do: they do not know.
//
// Arguments: the service URL, how many different messages are awaited, and for each consumer
// KIND=TOPIC: "Exclusive", "Shared", "Failover", "Reader", or "Tail" (a reader from now on). Prints
// "KIND subscribed", "KIND got TEXT" for each message, which it acknowledges, and "KIND ok".
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const wait = 90 * time.Second

var kinds = map[string]pulsar.SubscriptionType{
	"Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared, "Failover": pulsar.Failover,
}

type receive func(context.Context) (string, error)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	logger := logrus.New()
	level, err := logrus.ParseLevel(os.Getenv("PEER_LOG_LEVEL"))
	if err != nil {
		level = logrus.PanicLevel
	}
	logger.SetLevel(level)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], Logger: log.NewLoggerWithLogrus(logger),
	})
	must(err)
	defer client.Close()
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	var all sync.WaitGroup
	for _, argument := range os.Args[3:] {
		kind, topic, _ := strings.Cut(argument, "=")
		all.Add(1)
		go func() {
			defer all.Done()
			consume(client, kind, topic, count)
		}()
	}
	all.Wait()
}

func consume(client pulsar.Client, kind, topic string, count int) {
	next := subscribe(client, kind, topic)
	fmt.Println(kind + " subscribed")
	for seen := map[string]bool{}; len(seen) < count; {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		text, err := next(ctx)
		cancel()
		must(err)
		seen[text] = true
		fmt.Println(kind + " got " + text)
	}
	fmt.Println(kind + " ok")
}

func subscribe(client pulsar.Client, kind, topic string) receive {
	if kind == "Reader" || kind == "Tail" {
		start := pulsar.EarliestMessageID()
		if kind == "Tail" {
			start = pulsar.LatestMessageID()
		}
		reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: start})
		must(err)
		if reader.HasNext() {
			panic("nothing is published yet")
		}
		return func(ctx context.Context) (string, error) {
			message, err := reader.Next(ctx)
			if err != nil {
				return "", err
			}
			return string(message.Payload()), nil
		}
	}
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: kinds[kind],
		Properties: map[string]string{"peer": "go"},
	})
	must(err)
	return func(ctx context.Context) (string, error) {
		message, err := consumer.Receive(ctx)
		if err != nil {
			return "", err
		}
		return string(message.Payload()), consumer.Ack(message)
	}
}
