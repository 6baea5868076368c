// Topics of states by key with Pulsar's Go clients: written in batches and without, compacted by its
// admin client's REST, read by consumers, readers and table views.
//
// Arguments: the HTTP URL, the service URL. Prints "ok" and the name of each step that is done.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	messages = 400
	keys     = 37
	wait     = 30 * time.Second
)

type peer struct {
	client  pulsar.Client
	httpURL string
}

type pair struct{ key, value string }

func main() {
	logger := logrus.New()
	logger.SetLevel(logrus.PanicLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[2], Logger: log.NewLoggerWithLogrus(logger),
	})
	must(err)
	p := peer{client, os.Args[1]}
	for _, step := range []struct {
		name string
		run  func(topic string)
	}{
		{"consumers of batches", p.batches},
		{"consumers of single messages", p.singles},
		{"readers and what comes later", p.readers},
		{"table views", p.tableViews},
		{"all keys deleted", p.nothingLeft},
	} {
		step.run("compacted-" + strings.ReplaceAll(step.name, " ", "-"))
		fmt.Println("ok " + step.name)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func same(found, wanted any, what string) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("%s: %v, not %v", what, found, wanted))
	}
}

// What is left of it, in the order of the topic.
func (p peer) publish(topic string, batches bool, first int) []pair {
	producer, err := p.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: !batches, BatchingMaxMessages: 10,
		BatchingMaxPublishDelay: time.Second, CompressionType: pulsar.LZ4,
	})
	must(err)
	defer producer.Close()
	var all []pair
	for number := first; number < first+messages; number++ {
		each := pair{fmt.Sprintf("key-%d", number*7%keys), fmt.Sprintf("value %d", number)}
		if number%19 == 3 {
			each.value = ""
		}
		all = append(all, each)
		p.send(producer, each)
	}
	must(producer.Flush())
	last := map[string]int{}
	for number, each := range all {
		last[each.key] = number
	}
	var left []pair
	for number, each := range all {
		if last[each.key] == number && each.value != "" {
			left = append(left, each)
		}
	}
	return left
}

func (p peer) send(producer pulsar.Producer, each pair) {
	message := &pulsar.ProducerMessage{Key: each.key, Payload: []byte(each.value)}
	producer.SendAsync(context.Background(), message,
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(err) })
}

func (p peer) compact(topic string) {
	url := p.httpURL + "/admin/v2/persistent/public/default/" + topic + "/compaction"
	request, err := http.NewRequest(http.MethodPut, url, nil)
	must(err)
	answer, err := http.DefaultClient.Do(request)
	must(err)
	answer.Body.Close()
	same(answer.StatusCode, 204, "compaction")
	var told struct{ Status, LastError string }
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		answer, err := http.Get(url)
		must(err)
		must(json.NewDecoder(answer.Body).Decode(&told))
		answer.Body.Close()
		if told.Status != "RUNNING" {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	same(told.Status, "SUCCESS", "compaction "+told.LastError)
}

func (p peer) consume(topic, name string, count int) []pair {
	consumer, err := p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: name, ReadCompacted: true, Type: pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	must(err)
	defer consumer.Close()
	var found []pair
	for number := 0; number < count; number++ {
		within, cancel := context.WithTimeout(context.Background(), wait)
		message, err := consumer.Receive(within)
		cancel()
		must(err)
		found = append(found, pair{message.Key(), string(message.Payload())})
		must(consumer.Ack(message))
	}
	within, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if message, err := consumer.Receive(within); err == nil {
		panic("after the last: " + message.Key())
	}
	return found
}

func (p peer) batches(topic string) { p.consumers(topic, true) }

func (p peer) singles(topic string) { p.consumers(topic, false) }

func (p peer) consumers(topic string, batches bool) {
	left := p.publish(topic, batches, 0)
	p.compact(topic)
	same(p.consume(topic, "one", len(left)), left, "in order")
	later := p.publish(topic, batches, 5000)
	p.compact(topic)
	same(p.consume(topic, "one", len(later)), later, "only what is new")
	same(p.consume(topic, "two", len(later)), later, "each key came again: its newest")
}

func (p peer) reader(topic string) pulsar.Reader {
	reader, err := p.client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, ReadCompacted: true, StartMessageID: pulsar.EarliestMessageID(),
	})
	must(err)
	return reader
}

func (p peer) readAll(reader pulsar.Reader) []pair {
	var found []pair
	for reader.HasNext() {
		within, cancel := context.WithTimeout(context.Background(), wait)
		message, err := reader.Next(within)
		cancel()
		must(err)
		found = append(found, pair{message.Key(), string(message.Payload())})
	}
	return found
}

func (p peer) readers(topic string) {
	left := p.publish(topic, true, 0)
	p.compact(topic)
	reader := p.reader(topic)
	defer reader.Close()
	same(p.readAll(reader), left, "in order")
	later := p.publish(topic, false, 5000)
	found := p.readAll(reader)
	same(len(found), messages, "the log goes on")
	p.compact(topic)
	again := p.reader(topic)
	defer again.Close()
	same(p.readAll(again), later, "compacted again")
}

func (p peer) tableViews(topic string) {
	left := p.publish(topic, true, 0)
	p.compact(topic)
	bytes := pulsar.NewBytesSchema(nil)
	view, err := p.client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: bytes, SchemaValueType: reflect.TypeOf([]byte(nil)),
	})
	must(err)
	defer view.Close()
	same(view.Size(), len(left), "keys")
	for _, each := range left {
		same(text(view.Get(each.key)), each.value, each.key)
	}
}

func text(value any) string {
	switch found := value.(type) {
	case *[]byte:
		return string(*found)
	case []byte:
		return string(found)
	default:
		panic(fmt.Sprintf("a value of type %T", value))
	}
}

func (p peer) nothingLeft(topic string) {
	producer, err := p.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	must(err)
	defer producer.Close()
	for _, value := range []string{"v", ""} {
		for _, key := range []string{"a", "b", "c"} {
			p.send(producer, pair{key, value})
		}
	}
	must(producer.Flush())
	p.compact(topic)
	reader := p.reader(topic)
	defer reader.Close()
	same(len(p.readAll(reader)), 0, "messages")
}
