// Uses a broker the way applications do, through Pulsar's own Go client, and says what worked.
//
// Arguments: the service URL, the HTTP URL. Each step prints "ok NAME"; the first that fails ends the program with
// what went wrong and status 1.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// More than any step needs.
	wait = 20 * time.Second
	// Less than the client's own time-outs of 30 s.
	atOnce = 5 * time.Second
)

type peer struct {
	url    string
	http   string
	client pulsar.Client
	topics int
}

func main() {
	logger := logrus.New()
	logger.SetLevel(logrus.PanicLevel)
	p := &peer{url: os.Args[1], http: os.Args[2]}
	var err error
	p.client, err = pulsar.NewClient(pulsar.ClientOptions{
		URL: p.url, Logger: log.NewLoggerWithLogrus(logger),
	})
	must(err)
	for _, kind := range []pulsar.SubscriptionType{
		pulsar.Exclusive, pulsar.Shared, pulsar.Failover,
	} {
		p.consume(kind)
		fmt.Printf("ok consume %d\n", kind)
	}
	for _, step := range []struct {
		name string
		run  func()
	}{
		{"chunks", p.chunks},
		{"reader from every id", p.readers},
		{"seek", p.seek},
		{"json schemas", p.jsonSchema},
		{"avro schemas", p.avroSchema},
		{"protobuf schemas", p.protobuf},
		{"primitive schemas", p.primitives},
		{"dead letter", p.deadLetter},
		{"delayed", p.delayed},
		{"terminated topics", p.terminated},
		{"key shared", p.keyShared},
		{"key shared sticky", p.keySharedSticky},
		{"transactions are refused", p.transactions},
		{"bad names are refused", p.badNames},
	} {
		step.run()
		fmt.Println("ok " + step.name)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(true_ bool, what string, arguments ...any) {
	if !true_ {
		panic(fmt.Sprintf(what, arguments...))
	}
}

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), wait)
}

func (p *peer) topic() string {
	p.topics++
	return fmt.Sprintf("persistent://public/default/go-peer-%d-%d", time.Now().UnixNano(), p.topics)
}

func (p *peer) producer(options pulsar.ProducerOptions) pulsar.Producer {
	made, err := p.client.CreateProducer(options)
	must(err)
	return made
}

func (p *peer) consumer(topic string, kind pulsar.SubscriptionType) pulsar.Consumer {
	made, err := p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	must(err)
	return made
}

func publish(producer pulsar.Producer, count int) []pulsar.MessageID {
	ids := make([]pulsar.MessageID, count)
	for number := range count {
		message := &pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "%d", number)}
		producer.SendAsync(context.Background(), message,
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				must(err)
				ids[number] = id
			})
	}
	must(producer.Flush())
	return ids
}

func expect(consumer pulsar.Consumer, first, stop int) {
	for number := first; number < stop; number++ {
		ctx, cancel := soon()
		message, err := consumer.Receive(ctx)
		cancel()
		must(err)
		check(string(message.Payload()) == fmt.Sprint(number), "message %d, got %s", number,
			message.Payload())
		must(consumer.Ack(message))
	}
}

func refused(words string, run func() error) {
	begun := time.Now()
	err := run()
	check(err != nil, "not refused: %s", words)
	check(time.Since(begun) < atOnce, "refused after %s: %s", time.Since(begun), err)
	check(strings.Contains(err.Error(), words), "'%s' in: %s", words, err)
}

func (p *peer) consume(kind pulsar.SubscriptionType) {
	topic := p.topic()
	for _, plain := range []bool{true, false} {
		consumer := p.consumer(topic, kind)
		producer := p.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: plain})
		publish(producer, 20)
		expect(consumer, 0, 20)
		producer.Close()
		consumer.Close()
	}
}

func (p *peer) chunks() {
	topic := p.topic()
	consumer := p.consumer(topic, pulsar.Exclusive)
	producer := p.producer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true,
	})
	large := bytes.Repeat([]byte("chunk"), 2<<20)
	ctx, cancel := soon()
	defer cancel()
	_, err := producer.Send(ctx, &pulsar.ProducerMessage{Payload: large})
	must(err)
	message, err := consumer.Receive(ctx)
	must(err)
	check(bytes.Equal(message.Payload(), large), "the large message")
}

func (p *peer) readers() {
	for _, plain := range []bool{true, false} {
		topic := p.topic()
		producer := p.producer(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: plain, BatchingMaxMessages: 10,
			BatchingMaxPublishDelay: wait,
		})
		ids := publish(producer, 20)
		for _, inclusive := range []bool{false, true} {
			for _, index := range []int{0, 3, 9, 10, 18} {
				first := index + 1
				if inclusive {
					first = index
				}
				p.readFrom(topic, ids[index], inclusive, first)
			}
		}
	}
}

func (p *peer) readFrom(topic string, id pulsar.MessageID, inclusive bool, first int) {
	reader, err := p.client.CreateReader(pulsar.ReaderOptions{
		Topic: topic, StartMessageID: id, StartMessageIDInclusive: inclusive,
	})
	must(err)
	defer reader.Close()
	for number := first; number < 20; number++ {
		ctx, cancel := soon()
		message, err := reader.Next(ctx)
		cancel()
		check(err == nil, "message %d from %s (plain: %v): %v", number, id, inclusive, err)
		check(string(message.Payload()) == fmt.Sprint(number), "%d from %s: %s", number, id,
			message.Payload())
	}
}

func (p *peer) seek() {
	topic := p.topic()
	consumer := p.consumer(topic, pulsar.Exclusive)
	producer := p.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := publish(producer, 20)
	expect(consumer, 0, 20)
	must(consumer.SeekByTime(time.Now().Add(-time.Hour)))
	expect(consumer, 0, 20)
	// The client drops the message of the id, and all before it from now on.
	must(consumer.Seek(ids[5]))
	expect(consumer, 6, 20)
}

const (
	first  = `{"type":"record","name":"T","fields":[{"name":"n","type":"int"}]}`
	second = `{"type":"record","name":"T","fields":[{"name":"n","type":"int"},
		{"name":"m","type":"int","default":5}]}`
	wrong = `{"type":"record","name":"T","fields":[{"name":"n","type":"string"}]}`
)

type thing struct {
	N int `json:"n" avro:"n"`
	M int `json:"m" avro:"m"`
}

func (p *peer) reader(topic string, schema pulsar.Schema) pulsar.Consumer {
	made, err := p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Schema: schema,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	must(err)
	return made
}

// Sends a value with each schema, and reads both with the one that each was written with.
func (p *peer) evolve(one, two, other pulsar.Schema) {
	topic := p.topic()
	producer := p.producer(pulsar.ProducerOptions{Topic: topic, Schema: one})
	later := p.producer(pulsar.ProducerOptions{Topic: topic, Schema: two})
	consumer := p.reader(topic, one)
	ctx, cancel := soon()
	defer cancel()
	for number, from := range []pulsar.Producer{producer, later, producer} {
		_, err := from.Send(ctx, &pulsar.ProducerMessage{Value: thing{number, 9}})
		must(err)
		message, err := consumer.Receive(ctx)
		must(err)
		version := message.SchemaVersion()
		check(len(version) == 8 && int(version[7]) == number%2, "version %v", version)
		var found thing
		must(message.GetSchemaValue(&found))
		check(found.N == number, "value %d, not %v", number, found)
		check(number != 1 || found.M == 9, "what the second has, not %v", found)
	}
	refused("IncompatibleSchema", func() error {
		_, err := p.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: other})
		return err
	})
	refused("IncompatibleSchema", func() error {
		_, err := p.client.Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "other", Schema: other,
		})
		return err
	})
}

func (p *peer) jsonSchema() {
	p.evolve(pulsar.NewJSONSchema(first, nil), pulsar.NewJSONSchema(second, nil),
		pulsar.NewJSONSchema(wrong, nil))
}

func (p *peer) avroSchema() {
	p.evolve(pulsar.NewAvroSchema(first, nil), pulsar.NewAvroSchema(second, nil),
		pulsar.NewAvroSchema(wrong, nil))
}

func (p *peer) typed(schema pulsar.Schema, value, into any, other pulsar.Schema) {
	topic := p.topic()
	producer := p.producer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
	consumer := p.reader(topic, schema)
	ctx, cancel := soon()
	defer cancel()
	_, err := producer.Send(ctx, &pulsar.ProducerMessage{Value: value})
	must(err)
	message, err := consumer.Receive(ctx)
	must(err)
	must(message.GetSchemaValue(into))
	refused("IncompatibleSchema", func() error {
		_, err := p.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: other})
		return err
	})
}

func (p *peer) protobuf() {
	const asAvro = `{"type":"record","name":"Timestamp","fields":[
		{"name":"seconds","type":"long"},{"name":"nanos","type":"int"}]}`
	value := &timestamppb.Timestamp{Seconds: 7, Nanos: 8}
	for _, schema := range []pulsar.Schema{
		pulsar.NewProtoSchema(asAvro, nil), pulsar.NewProtoNativeSchemaWithMessage(value, nil),
	} {
		var found timestamppb.Timestamp
		p.typed(schema, value, &found, pulsar.NewProtoNativeSchemaWithMessage(&durationpb.Duration{}, nil))
		check(found.Seconds == 7 && found.Nanos == 8, "the value: %v", &found)
	}
}

func (p *peer) primitives() {
	strings, numbers := pulsar.NewStringSchema(nil), pulsar.NewInt64Schema(nil)
	var word *string
	p.typed(strings, "é", &word, numbers)
	check(*word == "é", "the text: %s", *word)
	var number int64
	p.typed(numbers, int64(-64), &number, strings)
	check(number == -64, "the number: %d", number)
	var half float64
	p.typed(pulsar.NewDoubleSchema(nil), 0.5, &half, strings)
	check(half == 0.5, "the half: %g", half)
	p.plainBytes()
}

// The client asks for the schema of the empty version, which these messages have.
func (p *peer) plainBytes() {
	topic, schema := p.topic(), pulsar.NewBytesSchema(nil)
	producer := p.producer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
	consumer := p.reader(topic, schema)
	ctx, cancel := soon()
	defer cancel()
	_, err := producer.Send(ctx, &pulsar.ProducerMessage{Value: []byte("plain")})
	must(err)
	message, err := consumer.Receive(ctx)
	must(err)
	var found []byte
	must(message.GetSchemaValue(&found))
	check(string(found) == "plain", "the bytes: %s", found)
}

func (p *peer) deadLetter() {
	topic := p.topic()
	consumer, err := p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Shared,
		NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ:                 &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead"},
	})
	must(err)
	dead := p.consumer(topic+"-dead", pulsar.Exclusive)
	publish(p.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true}), 1)
	for range 2 {
		ctx, cancel := soon()
		message, err := consumer.Receive(ctx)
		cancel()
		must(err)
		consumer.Nack(message)
	}
	expect(dead, 0, 1)
}

// The client does not know what consumers are told of the end, and would drop the connection: it is
// not told, and its consumers stay.
func (p *peer) terminated() {
	topic := p.topic()
	producer := p.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	publish(producer, 5)
	consumer := p.consumer(topic, pulsar.Shared)
	name := topic[strings.LastIndex(topic, "/"):]
	path := p.http + "/admin/v2/persistent/public/default" + name
	answer, err := http.Post(path+"/terminate", "application/json", nil)
	must(err)
	check(answer.StatusCode == http.StatusOK, "terminating: %s", answer.Status)
	ctx, cancel := soon()
	defer cancel()
	_, err = producer.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("late")})
	check(errors.Is(err, pulsar.ErrTopicTerminated) || errors.Is(err, pulsar.ErrProducerClosed),
		"a late message: %v", err)
	refused("TopicTerminatedError", func() error {
		_, err := p.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
		return err
	})
	expect(consumer, 0, 5)
	before := connectedSince(path)
	time.Sleep(2 * time.Second)
	check(connectedSince(path) == before, "the consumer's connection was dropped")
}

// Since when the topic's consumer is connected.
func connectedSince(path string) string {
	answer, err := http.Get(path + "/stats")
	must(err)
	defer answer.Body.Close()
	var stats struct {
		Subscriptions map[string]struct {
			Consumers []struct{ ConnectedSince string }
		}
	}
	must(json.NewDecoder(answer.Body).Decode(&stats))
	consumers := stats.Subscriptions["s"].Consumers
	check(len(consumers) == 1, "one consumer, not %d", len(consumers))
	return consumers[0].ConnectedSince
}

func (p *peer) delayed() {
	topic := p.topic()
	for _, plain := range []bool{true, false} {
		consumer := p.consumer(topic, pulsar.Shared)
		producer := p.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: plain})
		due := time.Now().Add(2 * time.Second)
		for _, message := range []*pulsar.ProducerMessage{
			{Payload: []byte("2"), DeliverAt: due.Add(3 * time.Second)},
			{Payload: []byte("1"), DeliverAfter: time.Until(due)},
			{Payload: []byte("0")},
		} {
			_, err := producer.Send(context.Background(), message)
			must(err)
		}
		expect(consumer, 0, 1)
		expect(consumer, 1, 2)
		check(!time.Now().Before(due), "it comes too early")
		expect(consumer, 2, 3)
		check(!time.Now().Before(due.Add(3*time.Second)), "it comes too early")
		consumer.Close()
	}
}

func (p *peer) keyed(topic string, policy *pulsar.KeySharedPolicy) (pulsar.Consumer, error) {
	return p.client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.KeyShared, KeySharedPolicy: policy,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, ReceiverQueueSize: 10,
	})
}

func publishKeys(producer pulsar.Producer, first, stop, keys int) {
	for number := first; number < stop; number++ {
		message := &pulsar.ProducerMessage{
			Payload: fmt.Appendf(nil, "%d", number), Key: fmt.Sprintf("k%d", number%keys),
		}
		producer.SendAsync(context.Background(), message,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(err) })
	}
	must(producer.Flush())
}

// Takes and acknowledges what comes until there are so many, each key in order.
func drain(numbers map[string][]int, stop int, consumers ...pulsar.Consumer) {
	end := time.Now().Add(2 * wait)
	count := 0
	for _, found := range numbers {
		count += len(found)
	}
	for count < stop {
		check(time.Now().Before(end), "all come: %v", numbers)
		for _, consumer := range consumers {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			message, err := consumer.Receive(ctx)
			cancel()
			if err != nil {
				continue
			}
			number, err := strconv.Atoi(string(message.Payload()))
			must(err)
			found := numbers[message.Key()]
			check(len(found) == 0 || found[len(found)-1] < number, "%d of %s comes after %v",
				number, message.Key(), found)
			numbers[message.Key()] = append(found, number)
			must(consumer.Ack(message))
			count++
		}
	}
}

func (p *peer) keyShared() {
	for _, batched := range []bool{false, true} {
		topic, numbers := p.topic(), map[string][]int{}
		options := pulsar.ProducerOptions{Topic: topic, DisableBatching: !batched}
		if batched {
			options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
		}
		producer := p.producer(options)
		one, err := p.keyed(topic, nil)
		must(err)
		publishKeys(producer, 0, 100, 20)
		two, err := p.keyed(topic, nil)
		must(err)
		drain(numbers, 50, one, two)
		publishKeys(producer, 100, 200, 20)
		drain(numbers, 200, one, two)
		check(len(numbers) == 20, "of every key")
		two.Close()
		publishKeys(producer, 200, 220, 20)
		drain(numbers, 220, one)
		producer.Close()
		one.Close()
	}
}

func (p *peer) keySharedSticky() {
	topic := p.topic()
	sticky := func(start, end int) *pulsar.KeySharedPolicy {
		policy, err := pulsar.NewKeySharedPolicySticky([]int{start, end})
		must(err)
		return policy
	}
	low, err := p.keyed(topic, sticky(0, 32767))
	must(err)
	refused("Range conflict", func() error {
		_, err := p.keyed(topic, sticky(30000, 40000))
		return err
	})
	refused("key_shared mode", func() error {
		_, err := p.keyed(topic, nil)
		return err
	})
	high, err := p.keyed(topic, sticky(32768, 65535))
	must(err)
	producer := p.producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	publishKeys(producer, 0, 200, 200)
	numbers := map[string][]int{}
	drain(numbers, 20, low)
	drain(numbers, 40, high)
	drain(numbers, 200, low, high)
}

func (p *peer) transactions() {
	refused("NotAllowed", func() error { // the client keeps the code and drops the words
		_, err := pulsar.NewClient(pulsar.ClientOptions{URL: p.url, EnableTransaction: true})
		return err
	})
}

func (p *peer) badNames() {
	for _, name := range []string{".", "..", strings.Repeat("x", 1100), "a\x01b"} {
		refused("", func() error {
			_, err := p.client.CreateProducer(pulsar.ProducerOptions{
				Topic: "persistent://public/default/" + name,
			})
			return err
		})
	}
}
