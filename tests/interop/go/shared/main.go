// Many topics at once while their owners change: one producer and one consumer a topic, numbered
// messages.
//
// Arguments: how many topics, then the service URL of each broker by itself. A topic's producer and
// its consumer are given different ones, so most lookups are redirected. What to do comes as lines
// (see tests/interop/driven_peer.py): each is answered with one line.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
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

const (
	pendingMax = 100
	round      = 20 * time.Millisecond
	wait       = 240 * time.Second
)

func main() {
	count, err := strconv.Atoi(os.Args[1])
	must(err)
	clients := make([]pulsar.Client, 0)
	for _, url := range os.Args[2:] {
		clients = append(clients, connect(url))
	}
	topics := make([]*traffic, count)
	for number := range topics {
		producers, consumers := clients[number%len(clients)], clients[(number+1)%len(clients)]
		topics[number] = begin(number, producers, consumers)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go sendAll(topics, stop, stopped)
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		switch words[0] {
		case "wait":
			more, err := strconv.ParseInt(words[1], 10, 64)
			must(err)
			waitAnswered(topics, more)
			fmt.Println("answered")
		case "mark":
			for _, each := range topics {
				each.mark()
			}
			fmt.Println("marked")
		case "gap":
			fmt.Println(worstGap(topics).Milliseconds())
		default:
			close(stop)
			<-stopped
			fmt.Println(counts(topics))
		}
	}
}

func connect(url string) pulsar.Client {
	logger := logrus.New()
	logger.SetLevel(logrus.PanicLevel)
	made, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: url, Logger: log.NewLoggerWithLogrus(logger), KeepAliveInterval: 5 * time.Second,
	})
	must(err)
	return made
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func sendAll(topics []*traffic, stop, stopped chan struct{}) {
	defer close(stopped)
	for {
		select {
		case <-stop:
			return
		case <-time.After(round):
			for _, each := range topics {
				each.send()
			}
		}
	}
}

func waitAnswered(topics []*traffic, more int64) {
	goals := make([]int64, len(topics))
	for index, each := range topics {
		goals[index] = each.counted().answered + more
	}
	for index, each := range topics {
		each.await("is not served", func(now tally) bool { return now.answered >= goals[index] })
	}
}

func worstGap(topics []*traffic) time.Duration {
	var worst time.Duration
	for _, each := range topics {
		worst = max(worst, each.gap())
	}
	return worst
}

// Of each topic: its name, and how many messages were acknowledged.
func counts(topics []*traffic) string {
	words := make([]string, 0)
	for _, each := range topics {
		each.await("has sends without an answer", func(now tally) bool {
			return now.answered == now.sent
		})
		each.await("has not all received", func(now tally) bool {
			return now.highest == now.sent-1
		})
		words = append(words, each.name, fmt.Sprint(each.counted().answered))
	}
	return strings.Join(words, " ")
}

type tally struct {
	sent, answered, highest int64
	fault                   string
}

type traffic struct {
	name     string
	producer pulsar.Producer
	consumer pulsar.Consumer

	lock  sync.Mutex
	now   tally
	last  time.Time
	worst time.Duration
}

func begin(number int, producers, consumers pulsar.Client) *traffic {
	t := &traffic{name: fmt.Sprintf("persistent://public/default/shared-%d", number)}
	t.now.highest = -1
	kind := pulsar.Exclusive
	if number%2 == 1 {
		kind = pulsar.Failover
	}
	var err error
	t.consumer, err = consumers.Subscribe(pulsar.ConsumerOptions{
		Topic: t.name, SubscriptionName: "all", Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	must(err)
	t.producer, err = producers.CreateProducer(pulsar.ProducerOptions{
		Topic: t.name, DisableBatching: true, SendTimeout: -1, MaxPendingMessages: 2 * pendingMax,
	})
	must(err)
	go t.receive()
	return t
}

// One message, unless too many wait for their answers.
func (t *traffic) send() {
	now := t.counted()
	if now.sent-now.answered >= pendingMax {
		return
	}
	t.lock.Lock()
	t.now.sent++
	t.lock.Unlock()
	message := &pulsar.ProducerMessage{
		Key:     fmt.Sprintf("k%d", now.sent%3),
		Payload: binary.BigEndian.AppendUint64(nil, uint64(now.sent)),
	}
	t.producer.SendAsync(context.Background(), message, t.stored)
}

func (t *traffic) stored(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if err != nil {
		t.now.fault = "a send failed: " + err.Error()
		return
	}
	t.now.answered++
	t.worst = max(t.worst, time.Since(t.last))
	t.last = time.Now()
}

// In order: only what came before and may not have been acknowledged comes again.
func (t *traffic) receive() {
	for {
		message, err := t.consumer.Receive(context.Background())
		if err != nil {
			return
		}
		number := int64(binary.BigEndian.Uint64(message.Payload()))
		t.lock.Lock()
		if number > t.now.highest+1 {
			t.now.fault = fmt.Sprintf("received %d after %d", number, t.now.highest)
		}
		t.now.highest = max(t.now.highest, number)
		t.lock.Unlock()
		_ = t.consumer.Ack(message) // one that does not arrive has the message come again
	}
}

func (t *traffic) counted() tally {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.now
}

func (t *traffic) mark() {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.last, t.worst = time.Now(), 0
}

// The longest time without an acknowledgement since the mark.
func (t *traffic) gap() time.Duration {
	t.lock.Lock()
	defer t.lock.Unlock()
	return max(t.worst, time.Since(t.last))
}

func (t *traffic) await(what string, holds func(tally) bool) {
	deadline := time.Now().Add(wait)
	for {
		now := t.counted()
		if now.fault != "" {
			panic(t.name + ": " + now.fault)
		}
		if holds(now) {
			return
		}
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("%s %s: %+v", t.name, what, now))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
